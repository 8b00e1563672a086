// The part `base`: checked bytes, hexadecimal digits, digests, errors, files.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/expert_call.hpp"
#include "base/file.hpp"
#include "base/hex.hpp"
#include "base/ids.hpp"
#include "base/pages.hpp"
#include "base/sha256.hpp"

namespace kvasir {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class base_files : public ::testing::Test {
  protected:
    base_files()
        : directory_(std::filesystem::path(::testing::TempDir()) / ("kvasir-base-" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(directory_);
    }
    ~base_files() override { std::filesystem::remove_all(directory_); }

    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator(directory_))
            found.push_back(entry.path().filename());
        return found;
    }

    std::filesystem::path directory_;
};

TEST(byte_reader, never_reads_past_the_end_and_stays_where_it_was) {
    const std::vector<std::byte> bytes(5, std::byte{0x11});
    byte_reader reader(bytes);
    EXPECT_EQ(reader.read<std::uint32_t>(), 0x11111111U);
    EXPECT_EQ(reader.read<std::uint32_t>(), std::nullopt);
    EXPECT_EQ(reader.remaining(), 1U);
    EXPECT_EQ(reader.take(2), std::nullopt);
    EXPECT_EQ(reader.take(~std::uint64_t{0}), std::nullopt);
    EXPECT_EQ(reader.read<std::uint8_t>(), 0x11);
    EXPECT_EQ(reader.read<std::uint8_t>(), std::nullopt);
    EXPECT_TRUE(reader.take(0).has_value());
}

TEST(byte_writer, writes_little_endian_and_reads_back) {
    std::vector<std::byte> bytes;
    byte_writer writer(bytes);
    writer.write(std::uint32_t{0x01020304});
    writer.write_f32(-1.5F);
    writer.write_text("ab");
    EXPECT_EQ(to_hex(bytes), "040302010000c0bf6162");
    byte_reader reader(bytes);
    EXPECT_EQ(reader.read<std::uint32_t>(), 0x01020304U);
    EXPECT_EQ(reader.read_f32(), -1.5F);
    EXPECT_EQ(reader.remaining(), 2U);
}

TEST(hex, refuses_what_is_no_pair_of_digits) {
    std::vector<std::byte> two(2);
    EXPECT_TRUE(from_hex("aF09", two));
    EXPECT_EQ(to_hex(two), "af09");
    EXPECT_FALSE(from_hex("af0", two));
    EXPECT_FALSE(from_hex("af090", two));
    EXPECT_FALSE(from_hex("ag09", two));
    EXPECT_FALSE(from_hex("", two));
}

TEST(sha256, agrees_with_the_published_vectors) {
    EXPECT_EQ(sha256::of({}).hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256::of(as_bytes("abc")).hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(sha256, starts_anew_after_a_digest) {
    sha256 hasher;
    hasher.update("a");
    hasher.update("bc");
    const sha256_digest first = hasher.finish();
    hasher.update("abc");
    EXPECT_EQ(hasher.finish(), first);
    EXPECT_EQ(sha256_digest::from_hex(first.hex()), first);
    EXPECT_EQ(sha256_digest::from_hex(first.hex().substr(1)), std::nullopt);
}

TEST(error, keeps_the_cause_and_its_code) {
    const error outer = error(errc::mismatch, "the digests differ").while_doing("checking a.gguf");
    EXPECT_EQ(outer.code, make_error_code(errc::mismatch));
    EXPECT_EQ(outer.message, "checking a.gguf: the digests differ");
    errno = ENOENT;
    EXPECT_THAT(system_error("cannot open x").message, HasSubstr("No such file"));
}

TEST(expert_call, knows_only_the_wire_numbers_it_defines) {
    for (unsigned number = 0; number < 256; ++number) {
        const auto kind = activation_kind_from(static_cast<std::uint8_t>(number));
        EXPECT_EQ(kind.has_value(), number >= 1 && number <= 11) << number;
        EXPECT_TRUE(!kind || name_of(*kind) != "unknown") << number;
        EXPECT_EQ(row_encoding_from(static_cast<std::uint8_t>(number)).has_value(), number <= 1) << number;
    }
    EXPECT_EQ(row_size_bytes(row_encoding::q8_k, 3072), 3504U);
    EXPECT_EQ(row_size_bytes(row_encoding::q8_k, 100), std::nullopt);
    EXPECT_EQ(row_size_bytes(row_encoding::f32, 0), std::nullopt);
    EXPECT_EQ(row_size_bytes(row_encoding::f32, 0xffffffff), 4 * 0xffffffffULL);
}

TEST_F(base_files, maps_what_was_written) {
    {
        auto file = atomic_file::create(directory_ / "a").value();
        ASSERT_TRUE(file.write("hello"));
        EXPECT_FALSE(std::filesystem::exists(directory_ / "a"));
        ASSERT_TRUE(file.commit());
    }
    const mapped_file mapped = mapped_file::open(directory_ / "a").value();
    EXPECT_EQ(to_hex(mapped.bytes()), to_hex(as_bytes("hello")));
}

TEST_F(base_files, leaves_nothing_behind_without_commit) {
    {
        auto file = atomic_file::create(directory_ / "a").value();
        ASSERT_TRUE(file.write("half"));
    }
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(base_files, names_what_cannot_be_opened) {
    EXPECT_THAT(mapped_file::open(directory_ / "none").error().message, HasSubstr("none: No such file"));
    EXPECT_THAT(mapped_file::open(directory_).error().message, HasSubstr("not a regular file"));
    EXPECT_THAT(atomic_file::create(directory_ / "no" / "a").error().message, HasSubstr("No such file"));
    std::ofstream(directory_ / "empty").close();
    EXPECT_TRUE(mapped_file::open(directory_ / "empty").value().bytes().empty());
}

/// A file of some pages, mapped, and none of them in memory yet as far as this can be asked for.
class base_pages : public base_files {
  protected:
    static constexpr std::size_t n_pages = 64;

    base_pages() {
        {
            auto file = atomic_file::create(directory_ / "pages").value();
            const std::vector<std::byte> page(page_bytes_, std::byte{7});
            for (std::size_t i = 0; i < n_pages; ++i)
                EXPECT_TRUE(file.write(page));
            EXPECT_TRUE(file.commit());
        }
        mapped_ = mapped_file::open(directory_ / "pages").value();
    }

    /// The address and thread sanitizers' run time turns munlock into nothing, so that counts cannot fall there.
    static constexpr bool munlock_is_real =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        false;
#else
        true;
#endif

    /// The process's locked memory, as the kernel counts it.
    static std::size_t locked_bytes() {
        std::ifstream status("/proc/self/status");
        for (std::string word; status >> word;)
            if (word == "VmLck:") {
                std::size_t kilobytes = 0;
                status >> kilobytes;
                return kilobytes * 1024;
            }
        return 0;
    }

    const std::size_t page_bytes_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    mapped_file mapped_;
};

TEST_F(base_pages, are_locked_whole_and_only_inside_the_range) {
    const std::size_t before = locked_bytes();
    {
        const auto lock = page_lock::make(mapped_.bytes().subspan(1, 4 * page_bytes_)).value();
        EXPECT_EQ(lock.pages().data(), mapped_.bytes().data() + page_bytes_);
        EXPECT_EQ(lock.pages().size(), 3 * page_bytes_);
        EXPECT_EQ(locked_bytes(), before + 3 * page_bytes_);
    }
    if (munlock_is_real) {
        EXPECT_EQ(locked_bytes(), before);
    }
}

TEST_F(base_pages, of_ranges_that_touch_are_unlocked_one_by_one) {
    const std::size_t before = locked_bytes();
    auto first = page_lock::make(mapped_.bytes().first(2 * page_bytes_ + 10)).value();
    const auto second = page_lock::make(mapped_.bytes().subspan(2 * page_bytes_ + 10)).value();
    EXPECT_EQ(locked_bytes(), before + (n_pages - 1) * page_bytes_);
    first = page_lock();
    if (munlock_is_real) {
        EXPECT_EQ(locked_bytes(), before + (n_pages - 3) * page_bytes_);
    }
}

TEST_F(base_pages, of_less_than_a_page_are_none) {
    EXPECT_TRUE(page_lock::make({}).value().pages().empty());
    EXPECT_TRUE(page_lock::make(mapped_.bytes().subspan(1, page_bytes_ - 1)).value().pages().empty());
    EXPECT_TRUE(page_lock::make(mapped_.bytes().subspan(10, page_bytes_)).value().pages().empty());
}

TEST_F(base_pages, that_will_be_needed_may_be_any) {
    will_need({});
    will_need(mapped_.bytes().subspan(5, 1));
    will_need(mapped_.bytes());
    const std::vector<std::byte> not_mapped(10);
    will_need(not_mapped);
    EXPECT_EQ(mapped_.bytes()[n_pages * page_bytes_ - 1], std::byte{7});
}

}  // namespace
}  // namespace kvasir

#include "base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvasir {

result<mapped_file> mapped_file::open(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return system_error("cannot open " + path.string());
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) {
        error failure = system_error("cannot examine " + path.string());
        ::close(descriptor);
        return failure;
    }
    if (!S_ISREG(status.st_mode)) {
        ::close(descriptor);
        return error(errc::io, path.string() + " is not a regular file");
    }
    mapped_file file;
    if (status.st_size > 0) {
        const auto size = static_cast<std::size_t>(status.st_size);
        void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
        if (address == MAP_FAILED) {
            error failure = system_error("cannot map " + path.string());
            ::close(descriptor);
            return failure;
        }
        file.bytes_ = byte_span(static_cast<const std::byte*>(address), size);
    }
    ::close(descriptor);
    return file;
}

mapped_file::mapped_file(mapped_file&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

mapped_file::~mapped_file() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

result<atomic_file> atomic_file::create(const std::filesystem::path& path) {
    std::filesystem::path temporary = path;
    temporary += '.';
    temporary += std::to_string(::getpid());
    temporary += ".partial";
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) return system_error("cannot create " + temporary.string());
    return atomic_file(descriptor, path, std::move(temporary));
}

atomic_file::atomic_file(atomic_file&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)) {}

atomic_file& atomic_file::operator=(atomic_file&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(target_, other.target_);
    std::swap(temporary_, other.temporary_);
    return *this;
}

atomic_file::~atomic_file() {
    discard();
}

result<void> atomic_file::write(byte_span bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            return system_error("cannot write " + target_.string());
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
}

result<void> atomic_file::commit() {
    if (::fsync(descriptor_) != 0) return system_error("cannot flush " + target_.string());
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) return system_error("cannot name " + target_.string());
    ::close(std::exchange(descriptor_, -1));
    return {};
}

void atomic_file::discard() noexcept {
    if (descriptor_ < 0) return;
    ::close(std::exchange(descriptor_, -1));
    ::unlink(temporary_.c_str());
}

}  // namespace kvasir

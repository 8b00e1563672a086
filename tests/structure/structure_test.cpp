// The source tree keeps its own rules, and the check would notice if it did not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "structure/structure_rules.hpp"

namespace kvasir::structure {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string text_of(const violation& found) {
    return found.line == 0 ? fmt::format("{}: {}", found.file, found.message)
                           : fmt::format("{}:{}: {}", found.file, found.line, found.message);
}

std::vector<std::string> texts_of(const report& found) {
    std::vector<std::string> texts;
    for (const auto& each : found.violations) {
        texts.push_back(text_of(each));
    }
    return texts;
}

/// A source tree of a few files, written to a folder of its own and removed afterwards.
class source_tree {
  public:
    explicit source_tree(const std::map<std::string, std::string>& files)
        : root_(std::filesystem::path(::testing::TempDir()) / fmt::format("structure-{}", ::getpid())) {
        std::filesystem::remove_all(root_);
        for (const auto& [name, text] : files) {
            std::filesystem::create_directories((root_ / name).parent_path());
            std::ofstream(root_ / name) << text;
        }
    }
    ~source_tree() {
        std::error_code ignored;
        std::filesystem::remove_all(root_, ignored);
    }
    source_tree(const source_tree&) = delete;
    source_tree& operator=(const source_tree&) = delete;

    std::vector<std::string> violations() const { return texts_of(check(root_)); }

  private:
    std::filesystem::path root_;
};

/// The violations of a tree with this one file in it.
std::vector<std::string> violations_of(const std::string& name, const std::string& text) {
    return source_tree({{"src/base/bytes.hpp", "#pragma once\n"}, {name, text}}).violations();
}

TEST(Structure, TheSourceTreeKeepsTheRules) {
    const auto found = check(KVASIR_SOURCE_DIR);
    for (const auto& each : found.violations) {
        ADD_FAILURE() << text_of(each);
    }
    EXPECT_GE(found.n_files, 20U) << "the check looked in the wrong place: " << KVASIR_SOURCE_DIR;
    for (const auto* const part : {"base", "expert", "model", "wire", "net", "cli"}) {
        EXPECT_THAT(found.parts, Contains(part));
    }
}

TEST(Structure, AllowsWhatTheTableAllows) {
    EXPECT_THAT(violations_of("src/net/tcp.cpp",
                              "#include <boost/beast/core.hpp>\n#include <openssl/ssl.h>\n#include <net/if.h>\n"
                              "#include \"wire/frame.hpp\"\n#include \"base/bytes.hpp\"\n#include \"net/tcp.hpp\"\n"),
                IsEmpty());
    EXPECT_THAT(violations_of("src/base/sha256.cpp", "#include <openssl/evp.h>\n"), IsEmpty());
    EXPECT_THAT(violations_of("src/backend/device.cpp",
                              "#include <ggml-backend-impl.h>\n#include \"swarm/dispatcher.hpp\"\n"
                              "#include \"expert/expert.hpp\"\n"),
                IsEmpty());
    EXPECT_THAT(violations_of("src/cli/serve.cpp",
                              "#include <llama.h>\n#include \"backend/device.hpp\"\n#include \"node/worker.hpp\"\n"),
                IsEmpty());
    EXPECT_THAT(violations_of("tests/backend_test.cpp", "#include <ggml-backend-impl.h>\n"), IsEmpty());
}

TEST(Structure, RefusesAnUpwardInclude) {
    EXPECT_THAT(violations_of("src/wire/frame.cpp", "#include \"base/bytes.hpp\"\n#include \"net/tcp.hpp\"\n"),
                ElementsAre("src/wire/frame.cpp:2: wire may not include net/tcp.hpp; below it are only: base"));
    EXPECT_THAT(violations_of("src/base/file.cpp", "  #  include   \"wire/frame.hpp\"  // why\n"),
                ElementsAre("src/base/file.cpp:1: base may not include wire/frame.hpp; below it are only: nothing"));
    EXPECT_THAT(violations_of("src/swarm/dispatcher.cpp", "#include <model/gguf_model.hpp>\n"),
                ElementsAre(HasSubstr("swarm may not include model/gguf_model.hpp")));
    EXPECT_THAT(violations_of("src/net/detail/tcp.cpp", "#include \"node/worker.hpp\"\n"),
                ElementsAre(HasSubstr("net may not include node/worker.hpp")));
}

TEST(Structure, EveryPartIsClosedToThoseAboveIt) {
    // Between any two parts at most one direction is open: the table has no cycles of two.
    const std::vector<std::string> parts = {"base", "model",  "expert", "wire",  "net",     "relay",
                                            "ring", "market", "node",   "swarm", "backend", "cli"};
    const auto open = [](const std::string& from, const std::string& to) {
        return violations_of(fmt::format("src/{}/a.cpp", from), fmt::format("#include \"{}/b.hpp\"\n", to)).empty();
    };
    for (const auto& from : parts) {
        for (const auto& to : parts) {
            if (from < to) {
                EXPECT_FALSE(open(from, to) && open(to, from)) << from << " and " << to << " may include each other";
            }
        }
        EXPECT_TRUE(open("cli", from)) << from;
        EXPECT_EQ(open(from, "cli"), from == "cli") << from;
    }
}

TEST(Structure, RefusesForeignHeadersOutOfPlace) {
    EXPECT_THAT(violations_of("src/expert/engine.cpp", "#include <ggml.h>\n#include <ggml-backend-impl.h>\n"),
                ElementsAre("src/expert/engine.cpp:2: <ggml-backend-impl.h> may be included only in src/backend/"));
    EXPECT_THAT(violations_of("src/wire/frame.cpp", "#include <ggml.h>\n"), ElementsAre(HasSubstr("<ggml.h>")));
    EXPECT_THAT(violations_of("src/node/worker.cpp", "#include <boost/beast/websocket.hpp>\n"),
                ElementsAre(HasSubstr("<boost/beast/websocket.hpp> may be included only in src/net/")));
    EXPECT_THAT(violations_of("src/wire/frame.cpp", "#include <boost/asio/buffer.hpp>\n"),
                ElementsAre(HasSubstr("<boost/asio/buffer.hpp>")));
    EXPECT_THAT(violations_of("src/base/sha256_tree.cpp", "#include <openssl/evp.h>\n"),
                ElementsAre(HasSubstr("<openssl/evp.h>")));
    EXPECT_THAT(violations_of("src/cli/market.cpp", "#include <sqlite3.h>\n"), ElementsAre(HasSubstr("<sqlite3.h>")));
}

TEST(Structure, RefusesIncludesThatDoNotNameTheirPart) {
    EXPECT_THAT(violations_of("src/base/file.cpp", "#include \"bytes.hpp\"\n"),
                ElementsAre(HasSubstr("\"bytes.hpp\" is no <part>/<header>")));
    EXPECT_THAT(violations_of("src/base/file.cpp", "#include \"../wire/frame.hpp\"\n"),
                ElementsAre(HasSubstr("is no <part>/<header>")));
}

TEST(Structure, RefusesUnknownPartsLongFilesAndUnguardedHeaders) {
    EXPECT_THAT(violations_of("src/kitchen/sink.cpp", "\n"), ElementsAre(HasSubstr("belongs to no known part")));
    EXPECT_THAT(violations_of("tests/long_test.cpp", std::string(800, '\n')), IsEmpty());
    EXPECT_THAT(violations_of("tests/long_test.cpp", std::string(801, '\n')), ElementsAre(HasSubstr("has 801 lines")));
    EXPECT_THAT(violations_of("tests/support/files.hpp", "// #pragma once\n"),
                ElementsAre("tests/support/files.hpp: is a header without #pragma once"));
}

TEST(Structure, RefusesToCheckNothing) {
    EXPECT_THROW(check(std::filesystem::path(::testing::TempDir()) / "no-such-tree"), std::runtime_error);
}

}  // namespace
}  // namespace kvasir::structure

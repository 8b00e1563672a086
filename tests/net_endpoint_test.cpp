#include "net/endpoint.hpp"

#include <gmock/gmock.h>

namespace kvasir::net {
namespace {

using ::testing::HasSubstr;

TEST(net_endpoint, parses_and_prints) {
    const std::pair<const char*, endpoint> good[] = {
        {"127.0.0.1:80", {"127.0.0.1", 80}},
        {"worker.example:65535", {"worker.example", 65535}},
        {"[::1]:0", {"::1", 0}},
        {"[fe80::1]:4711", {"fe80::1", 4711}},
    };
    for (const auto& [text, expected] : good) {
        const auto parsed = endpoint::parse(text);
        ASSERT_TRUE(parsed) << text;
        EXPECT_EQ(*parsed, expected);
        EXPECT_EQ(parsed->text(), text);
    }
}

TEST(net_endpoint, says_what_is_wrong) {
    const std::pair<const char*, const char*> bad[] = {
        {"", "no port"},         {"host", "no port"},     {":80", "no host"},   {"host:", "0 to 65535"},
        {"host:65536", "65535"}, {"host:-1", "65535"},    {"host:8x", "65535"}, {"host: 80", "65535"},
        {"::1:80", "brackets"},  {"[::1:80", "brackets"}, {"[]:80", "no host"}, {"::1]:80", "brackets"},
        {"[::1]", "brackets"},
    };
    for (const auto& [text, why] : bad) {
        const auto parsed = endpoint::parse(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr(why)) << text;
    }
    EXPECT_FALSE(endpoint::parse(std::string(300, 'a') + ":80"));
}

}  // namespace
}  // namespace kvasir::net

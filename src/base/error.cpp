#include "base/error.hpp"

#include <cerrno>
#include <stdexcept>

namespace kvasir {
namespace {

class kvasir_category final : public boost::system::error_category {
  public:
    const char* name() const noexcept override { return "kvasir"; }

    std::string message(int value) const override {
        switch (static_cast<errc>(value)) {
            case errc::io:
                return "input/output failed";
            case errc::invalid_input:
                return "invalid input";
            case errc::unsupported:
                return "not supported";
            case errc::mismatch:
                return "mismatch";
            case errc::limit_exceeded:
                return "limit exceeded";
            case errc::timeout:
                return "deadline passed";
            case errc::closed:
                return "connection closed";
            case errc::cancelled:
                return "cancelled";
            case errc::busy:
                return "busy";
            case errc::internal:
                return "internal error";
        }
        return "unknown error";
    }
};

}  // namespace

const boost::system::error_category& error_category() noexcept {
    static const kvasir_category category;
    return category;
}

boost::system::error_code make_error_code(errc code) noexcept {
    return {static_cast<int>(code), error_category()};
}

error error::while_doing(std::string_view attempt) const {
    return error(code, std::string(attempt) + ": " + message);
}

void throw_exception_from_error(const error& failure, const boost::source_location&) {
    throw std::runtime_error(failure.message);
}

error system_error(std::string_view what) {
    const boost::system::error_code cause(errno, boost::system::system_category());
    return error(cause, std::string(what) + ": " + cause.message());
}

}  // namespace kvasir

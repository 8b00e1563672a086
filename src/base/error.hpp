// The error value that all parts share: a code to decide by, and a sentence for a person.
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/result.hpp>
#include <string>
#include <string_view>

namespace kvasir {

/// What went wrong, in kinds a caller can act on. The sentence beside it names the thing and the remedy.
enum class errc {
    io = 1,          ///< the operating system refused (file, socket)
    invalid_input,   ///< bytes or arguments that are not what they claim to be
    unsupported,     ///< well-formed, but not something this build can do
    mismatch,        ///< two things that must be equal differ (fingerprint, digest, shape)
    limit_exceeded,  ///< larger than a stated or negotiated maximum
    timeout,         ///< a deadline passed
    closed,          ///< the other side is gone
    cancelled,       ///< nobody wants the result any more
    busy,            ///< try again later or elsewhere
    internal,        ///< our own mistake
};

const boost::system::error_category& error_category() noexcept;
boost::system::error_code make_error_code(errc code) noexcept;

/// An error value. `message` is one line: what was wrong with what, and how to mend it; causes are kept in it.
struct error {
    boost::system::error_code code;
    std::string message;

    /// No error: what `result::error()` gives for a success. Never an error's own state.
    error() = default;
    error(errc kind, std::string text) : code(make_error_code(kind)), message(std::move(text)) {}
    error(boost::system::error_code cause, std::string text) : code(cause), message(std::move(text)) {}

    /// The same error with what was being attempted said first: "opening model.gguf: …".
    [[nodiscard]] error while_doing(std::string_view attempt) const;
};

template <class T>
using result = boost::system::result<T, error>;

/// Lets `result::value()` throw at start-up, where exceptions are the way to stop.
[[noreturn]] void throw_exception_from_error(const error& failure, const boost::source_location& location);

/// The error of the last failed system call: "<what>: <strerror(errno)>".
error system_error(std::string_view what);

}  // namespace kvasir

template <>
struct boost::system::is_error_code_enum<kvasir::errc> : std::true_type {};

// The seam between conversations and transports: an ordered stream of bytes both ways. A transport is one file with one
// class of this kind; everything above it is the same for all.
//
// A stream belongs to one strand. Its coroutines and close() run there. try_write(), shutdown_send() and close() are in
// addition serialised by the owner's lock, because try_write() comes from other threads too, past the strand: it saves
// the hop to the io thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <span>
#include <string>

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace kvasir::net {

class byte_stream {
  public:
    virtual ~byte_stream() = default;

    /// Fills the buffers from the front with what is there, one byte at least; 0 means that the other side will send no
    /// more. The buffers are not empty altogether.
    virtual boost::asio::awaitable<result<std::size_t>> read_some(std::span<const std::span<std::byte>> buffers) = 0;

    /// Writes a part of the buffers, one byte at least, when the transport takes it.
    virtual boost::asio::awaitable<result<std::size_t>> write_some(std::span<const byte_span> buffers) = 0;

    /// Writes what the transport takes at once, without waiting, which may be nothing. Never while write_some() is
    /// under way.
    virtual result<std::size_t> try_write(std::span<const byte_span> buffers) = 0;

    /// We will send no more; reading goes on.
    virtual void shutdown_send() = 0;

    /// Ends reads and writes under way with an error. Calling it again does nothing.
    virtual void close() = 0;

    /// Who is at the other end, for people.
    virtual std::string remote() const = 0;
    virtual boost::asio::any_io_executor executor() const = 0;
};

}  // namespace kvasir::net

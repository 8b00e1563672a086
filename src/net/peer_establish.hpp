// The backbone's handshake over a stream that is already open: what peer_connection::connect does after connecting, and
// where tests and other transports join.
#pragma once

#include <memory>

#include "net/byte_stream.hpp"
#include "net/peer_connection.hpp"

namespace kvasir::net {

/// From any thread. `done` is called once, on the stream's strand.
void establish_peer(std::unique_ptr<byte_stream> stream, wire::hello ours, connection_options options,
                    peer_handlers handlers, peer_connection::connect_handler done);

}  // namespace kvasir::net

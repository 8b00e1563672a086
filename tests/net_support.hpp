// What the net and node tests share: a blocking socket that can say anything, and a backbone's handle that waits for
// answers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "net/peer_connection.hpp"
#include "wire_support.hpp"

namespace kvasir::net {

inline constexpr std::chrono::seconds patience{20};

/// A TCP connection to 127.0.0.1 without any protocol.
class raw_client {
  public:
    explicit raw_client(std::uint16_t port, int receive_buffer_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
        if (receive_buffer_bytes > 0)
            ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }
    raw_client(const raw_client&) = delete;
    raw_client& operator=(const raw_client&) = delete;
    ~raw_client() { close(); }

    bool connected() const { return connected_; }
    void close() {
        if (socket_ >= 0) ::close(std::exchange(socket_, -1));
    }
    /// With a reset instead of an orderly end.
    void abort() {
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close();
    }
    void shutdown_send() { ::shutdown(socket_, SHUT_WR); }

    /// False when the other side does not take all of it (it is gone, or does not read).
    bool send(byte_span bytes, std::chrono::milliseconds longest_wait = patience) {
        while (!bytes.empty()) {
            pollfd ready{.fd = socket_, .events = POLLOUT, .revents = 0};
            if (::poll(&ready, 1, static_cast<int>(longest_wait.count())) <= 0) return false;
            const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (count < 0 && errno != EAGAIN) return false;
            if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
        }
        return true;
    }

    /// The next frame, header and payload; empty when the stream ends or is silent for too long.
    struct received_frame {
        wire::frame_header header;
        wire::byte_vector payload;
    };
    std::optional<received_frame> receive() {
        wire::frame_header_array header;
        if (!receive_exactly(header)) return std::nullopt;
        received_frame got{wire::decode_frame_header(header), {}};
        if (got.header.payload_bytes > (64U << 20U)) return std::nullopt;
        got.payload.resize(static_cast<std::size_t>(got.header.payload_bytes));
        if (!receive_exactly(got.payload)) return std::nullopt;
        return got;
    }
    /// The next frame of this type, others skipped (PINGs answered).
    std::optional<received_frame> receive(wire::frame_type type) {
        while (auto got = receive()) {
            if (got->header.type == static_cast<std::uint8_t>(type)) return got;
            if (got->header.type == static_cast<std::uint8_t>(wire::frame_type::ping))
                send(wire::frame(wire::frame_type::pong, 0, got->payload));
        }
        return std::nullopt;
    }
    /// True when the other side ends the stream in time.
    bool sees_end() {
        while (receive()) {
        }
        return ended_;
    }

  private:
    bool receive_exactly(std::span<std::byte> out) {
        while (!out.empty()) {
            pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
            const int timeout_ms = static_cast<int>(std::chrono::milliseconds(patience).count());
            if (::poll(&ready, 1, timeout_ms) <= 0) return false;
            const ssize_t count = ::recv(socket_, out.data(), out.size(), 0);
            ended_ = count <= 0;
            if (ended_) return false;
            out = out.subspan(static_cast<std::size_t>(count));
        }
        return true;
    }

    int socket_ = -1;
    bool connected_ = false;
    bool ended_ = false;
};

/// Keeps what a peer_connection's handlers were told, and waits for it.
class recorder {
  public:
    peer_handlers handlers() {
        return {.on_result =
                    [this](request_id id, wire::received_result result) {
                        const std::scoped_lock lock(mutex_);
                        ++n_ends_[id.value];
                        results_.emplace(id.value, std::move(result));
                        changed_.notify_all();
                    },
                .on_request_error =
                    [this](request_id id, wire::error_message failure) {
                        const std::scoped_lock lock(mutex_);
                        ++n_ends_[id.value];
                        failures_.emplace(id.value, std::move(failure));
                        changed_.notify_all();
                    },
                .on_drain =
                    [this] {
                        const std::scoped_lock lock(mutex_);
                        drained_ = true;
                        changed_.notify_all();
                    },
                .on_closed =
                    [this](error reason) {
                        const std::scoped_lock lock(mutex_);
                        EXPECT_FALSE(closed_) << "closed twice";
                        closed_ = std::move(reason);
                        changed_.notify_all();
                    }};
    }

    std::optional<wire::received_result> result(std::uint64_t id) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, patience, [&] { return n_ends_.contains(id) || closed_; });
        const auto at = results_.find(id);
        if (at == results_.end()) return std::nullopt;
        auto taken = std::move(at->second);
        results_.erase(at);
        return taken;
    }
    std::optional<wire::error_message> failure(std::uint64_t id) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, patience, [&] { return n_ends_.contains(id) || closed_; });
        const auto at = failures_.find(id);
        return at == failures_.end() ? std::nullopt : std::optional(at->second);
    }
    std::optional<error> closed() {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, patience, [&] { return closed_.has_value(); });
        return closed_;
    }
    bool drained() {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return drained_; });
    }
    /// How often each request ended.
    std::map<std::uint64_t, int> ends() {
        const std::scoped_lock lock(mutex_);
        return n_ends_;
    }
    bool wait_for_ends(std::size_t count) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return n_ends_.size() >= count; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, wire::received_result> results_;
    std::map<std::uint64_t, wire::error_message> failures_;
    std::map<std::uint64_t, int> n_ends_;
    std::optional<error> closed_;
    bool drained_ = false;
};

template <class Condition>
bool eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace kvasir::net

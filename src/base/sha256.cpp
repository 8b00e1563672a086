#include "base/sha256.hpp"

#include <openssl/evp.h>

#include <stdexcept>

#include "base/hex.hpp"

namespace kvasir {

struct sha256::state {
    state() : context(EVP_MD_CTX_new()) {
        if (context == nullptr) throw std::bad_alloc();
        restart();
    }
    ~state() { EVP_MD_CTX_free(context); }
    state(const state&) = delete;
    state& operator=(const state&) = delete;

    void restart() {
        if (EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) throw std::runtime_error("OpenSSL has no SHA-256");
    }

    EVP_MD_CTX* context;
};

sha256::sha256() : state_(std::make_unique<state>()) {}
sha256::~sha256() = default;
sha256::sha256(sha256&&) noexcept = default;
sha256& sha256::operator=(sha256&&) noexcept = default;

void sha256::update(byte_span bytes) {
    if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1) throw std::runtime_error("SHA-256 failed");
}

sha256_digest sha256::finish() {
    sha256_digest digest;
    unsigned int size = 0;
    if (EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(digest.bytes.data()), &size) != 1)
        throw std::runtime_error("SHA-256 failed");
    state_->restart();
    return digest;
}

sha256_digest sha256::of(byte_span bytes) {
    sha256 hasher;
    hasher.update(bytes);
    return hasher.finish();
}

std::string sha256_digest::hex() const {
    return to_hex(bytes);
}

std::optional<sha256_digest> sha256_digest::from_hex(std::string_view text) {
    sha256_digest digest;
    if (!kvasir::from_hex(text, digest.bytes)) return std::nullopt;
    return digest;
}

}  // namespace kvasir

// Strong ids: an index of one kind cannot be passed where another kind is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace kvasir {

/// An integer that knows what it counts. `Tag` only tells the kinds apart; the value is plain.
template <class Tag, class Representation>
struct strong_id {
    Representation value{};

    friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;
};

/// A block of the model, as in the tensor name `blk.<layer>.…`.
using layer_id = strong_id<struct layer_tag, std::uint32_t>;
/// An expert's index within its layer in the whole model: the position along `ne[2]` of the layer's expert tensors.
using expert_id = strong_id<struct expert_tag, std::uint32_t>;
/// An expert's position within what one worker holds of a layer (see wire::held_layer).
using local_expert_id = strong_id<struct local_expert_tag, std::uint32_t>;
/// One request on one connection; chosen by the side that asks, never reused while it is in flight.
using request_id = strong_id<struct request_tag, std::uint64_t>;

}  // namespace kvasir

template <class Tag, class Representation>
struct std::hash<kvasir::strong_id<Tag, Representation>> {
    std::size_t operator()(const kvasir::strong_id<Tag, Representation>& id) const noexcept {
        return std::hash<Representation>{}(id.value);
    }
};

// Which experts of which layers: the text a person types, and the ranges it means for a given model.
//
//     selection = "all" | item { "," item }
//     item      = layers ":" experts
//     layers    = number | number "-" number | "*"           ("*": every layer that has routed experts)
//     experts   = "*" | range { "+" range }
//     range     = number | number "-" number                 (both ends belong to it)
//
// "3:0-63,4:0-63,5:7,6:0-3+9", "*:0-7", "0-47:0-7,3:8". Items add up: an expert named twice is held once. Spaces are
// allowed around every part.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/ids.hpp"
#include "model/expert_map.hpp"

namespace kvasir::model {

/// Experts first, first + 1, …, first + count - 1; count is never 0.
struct expert_range {
    expert_id first;
    std::uint32_t count = 0;

    friend bool operator==(const expert_range&, const expert_range&) = default;
};

/// What is held of one layer. Ranges ascend and neither overlap nor touch. An expert's local id is its position in the
/// concatenation of the ranges, which is its position along the expert dimension of a slice's tensors.
struct held_layer {
    layer_id layer;
    std::vector<expert_range> ranges;

    friend bool operator==(const held_layer&, const held_layer&) = default;

    std::uint32_t n_experts() const;
    std::optional<local_expert_id> local_of(expert_id expert) const;
    std::optional<expert_id> global_of(local_expert_id local) const;
};

/// A parsed selection. It knows no model yet, so `*` is still open.
class expert_selection {
  public:
    static constexpr std::size_t max_text_size = 65'536;
    static constexpr std::size_t max_items = 16'384;

    /// Errors: invalid_input, naming the position and what was expected there; limit_exceeded.
    static result<expert_selection> parse(std::string_view text);
    /// Everything: what "all" parses to.
    static expert_selection all();

    /// The ranges that are meant in this model, ascending by layer. Errors: invalid_input, naming the layer or expert
    /// the model does not have and what it has.
    result<std::vector<held_layer>> resolve(const expert_map& experts) const;

  private:
    struct layer_span {  ///< inclusive; all when `every`
        bool every = false;
        std::uint32_t first = 0;
        std::uint32_t last = 0;
    };
    struct item {
        layer_span layers;
        bool every_expert = false;
        std::vector<expert_range> ranges;
    };
    friend class selection_parser;

    std::vector<item> items_;
};

/// "3:0-63,5:7": the text that parses and resolves back to exactly this.
std::string to_text(std::span<const held_layer> held);

}  // namespace kvasir::model

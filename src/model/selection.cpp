#include "model/selection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace kvasir::model {
namespace {

/// What part of a text goes into a message, so that a long text does not become a long line.
std::string quoted(std::string_view text) {
    constexpr std::size_t max_size = 24;
    if (text.size() <= max_size) return fmt::format("\"{}\"", text);
    return fmt::format("\"{}…\"", text.substr(0, max_size));
}

std::string layers_text(const expert_map& experts) {
    // Runs of consecutive layers: "3-60" rather than 58 numbers.
    std::string text;
    const auto& layers = experts.layers;
    for (std::size_t i = 0; i < layers.size();) {
        std::size_t end = i + 1;
        while (end < layers.size() && layers[end].layer.value == layers[end - 1].layer.value + 1)
            ++end;
        if (!text.empty()) text += ", ";
        text += fmt::format("{}", layers[i].layer.value);
        if (end - i > 1) text += fmt::format("-{}", layers[end - 1].layer.value);
        i = end;
    }
    return text;
}

/// Sorts ranges and joins those that overlap or touch.
void normalise(std::vector<expert_range>& ranges) {
    std::ranges::sort(ranges, {}, &expert_range::first);
    std::vector<expert_range> joined;
    for (const expert_range& range : ranges) {
        if (!joined.empty() && range.first.value <= joined.back().first.value + joined.back().count) {
            const std::uint32_t end =
                std::max(joined.back().first.value + joined.back().count, range.first.value + range.count);
            joined.back().count = end - joined.back().first.value;
        } else {
            joined.push_back(range);
        }
    }
    ranges = std::move(joined);
}

}  // namespace

/// Recursive descent over the grammar in the header; every function leaves the position behind what it understood.
class selection_parser {
  public:
    explicit selection_parser(std::string_view text) : text_(text) {}

    result<expert_selection> parse() {
        expert_selection selection;
        skip_spaces();
        if (text_.substr(position_).starts_with("all")) {
            position_ += 3;
            skip_spaces();
            if (position_ != text_.size()) return expected("the end after \"all\"");
            return expert_selection::all();
        }
        do {
            auto item = parse_item();
            if (!item) return item.error();
            n_ranges_ += item->ranges.size() + 1;
            if (n_ranges_ > expert_selection::max_items)
                return error(errc::limit_exceeded, fmt::format("an expert selection may have at most {} ranges",
                                                               expert_selection::max_items));
            selection.items_.push_back(std::move(*item));
        } while (accept(','));
        if (position_ != text_.size()) return expected("\",\" and another layer, or the end");
        return selection;
    }

  private:
    // The largest number allowed anywhere: first + count never leaves 32 bits.
    static constexpr std::uint32_t max_number = 1'000'000;

    struct bounds {  ///< inclusive
        std::uint32_t first = 0;
        std::uint32_t last = 0;
    };

    result<expert_selection::item> parse_item() {
        expert_selection::item item;
        if (accept('*')) {
            item.layers.every = true;
        } else {
            auto layers = parse_bounds("a layer number, \"*\" or \"all\"");
            if (!layers) return layers.error();
            item.layers.first = layers->first;
            item.layers.last = layers->last;
        }
        if (!accept(':')) return expected("\":\" and the experts of that layer, as in 3:0-63");
        if (accept('*')) {
            item.every_expert = true;
            return item;
        }
        do {
            auto range = parse_bounds("an expert number or \"*\"");
            if (!range) return range.error();
            item.ranges.push_back({expert_id{range->first}, range->last - range->first + 1});
            if (n_ranges_ + item.ranges.size() > expert_selection::max_items)
                return error(errc::limit_exceeded, fmt::format("an expert selection may have at most {} ranges",
                                                               expert_selection::max_items));
        } while (accept('+'));
        return item;
    }

    result<bounds> parse_bounds(std::string_view what) {
        const auto first = parse_number(what);
        if (!first) return first.error();
        if (!accept('-')) return bounds{*first, *first};
        const auto last = parse_number("the number a range ends with");
        if (!last) return last.error();
        if (*last < *first)
            return error(errc::invalid_input,
                         fmt::format("range {}-{} in the expert selection runs backwards; did you mean {}-{}?", *first,
                                     *last, *last, *first));
        return bounds{*first, *last};
    }

    result<std::uint32_t> parse_number(std::string_view what) {
        skip_spaces();
        const char* begin = text_.data() + position_;
        const char* end = text_.data() + text_.size();
        std::uint32_t value = 0;
        const auto [stop, status] = std::from_chars(begin, end, value);
        if (status == std::errc::invalid_argument) return expected(what);
        if (status != std::errc() || value > max_number)
            return error(errc::limit_exceeded,
                         fmt::format("number {} in the expert selection is larger than any layer or expert number ({})",
                                     quoted(std::string_view(begin, stop)), max_number));
        position_ += static_cast<std::size_t>(stop - begin);
        skip_spaces();
        return value;
    }

    bool accept(char character) {
        skip_spaces();
        if (position_ == text_.size() || text_[position_] != character) return false;
        ++position_;
        skip_spaces();
        return true;
    }

    void skip_spaces() {
        while (position_ < text_.size() && text_[position_] == ' ')
            ++position_;
    }

    error expected(std::string_view what) const {
        const std::string found =
            position_ == text_.size() ? std::string("it ends there") : "found " + quoted(text_.substr(position_));
        return error(errc::invalid_input,
                     fmt::format("expert selection: expected {} at character {}, but {}", what, position_ + 1, found));
    }

    std::string_view text_;
    std::size_t position_ = 0;
    std::size_t n_ranges_ = 0;
};

std::uint32_t held_layer::n_experts() const {
    std::uint32_t sum = 0;
    for (const expert_range& range : ranges)
        sum += range.count;
    return sum;
}

std::optional<local_expert_id> held_layer::local_of(expert_id expert) const {
    std::uint32_t before = 0;
    for (const expert_range& range : ranges) {
        if (expert.value >= range.first.value && expert.value - range.first.value < range.count)
            return local_expert_id{before + (expert.value - range.first.value)};
        before += range.count;
    }
    return std::nullopt;
}

std::optional<expert_id> held_layer::global_of(local_expert_id local) const {
    std::uint32_t rest = local.value;
    for (const expert_range& range : ranges) {
        if (rest < range.count) return expert_id{range.first.value + rest};
        rest -= range.count;
    }
    return std::nullopt;
}

result<expert_selection> expert_selection::parse(std::string_view text) {
    if (text.size() > max_text_size)
        return error(errc::limit_exceeded, fmt::format("the expert selection has {} characters; at most {} are read",
                                                       text.size(), max_text_size));
    return selection_parser(text).parse();
}

expert_selection expert_selection::all() {
    expert_selection selection;
    item everything;
    everything.layers.every = true;
    everything.every_expert = true;
    selection.items_.push_back(std::move(everything));
    return selection;
}

result<std::vector<held_layer>> expert_selection::resolve(const expert_map& experts) const {
    std::map<std::uint32_t, std::vector<expert_range>> ranges_of;
    for (const item& wanted : items_) {
        const auto add_layer = [&](const expert_layer& layer) -> result<void> {
            auto& ranges = ranges_of[layer.layer.value];
            if (wanted.every_expert) ranges.push_back({expert_id{0}, layer.n_experts});
            for (const expert_range& range : wanted.ranges) {
                if (range.first.value >= layer.n_experts || range.count > layer.n_experts - range.first.value)
                    return error(
                        errc::invalid_input,
                        fmt::format("layer {} has experts 0 to {}; the selection asks for {} to {}", layer.layer.value,
                                    layer.n_experts - 1, range.first.value, range.first.value + (range.count - 1)));
                ranges.push_back(range);
            }
            // Many overlapping items must not pile up: what is held of a layer stays as small as it can be.
            normalise(ranges);
            return {};
        };
        if (wanted.layers.every) {
            for (const expert_layer& layer : experts.layers)
                if (auto added = add_layer(layer); !added) return added.error();
            continue;
        }
        for (std::uint64_t number = wanted.layers.first; number <= wanted.layers.last; ++number) {
            const expert_layer* layer = experts.find(layer_id{static_cast<std::uint32_t>(number)});
            if (layer == nullptr)
                return error(errc::invalid_input,
                             fmt::format("layer {} has no routed experts; the layers that have are {}", number,
                                         layers_text(experts)));
            if (auto added = add_layer(*layer); !added) return added.error();
        }
    }
    std::vector<held_layer> held;
    for (auto& [layer, ranges] : ranges_of)
        held.push_back({layer_id{layer}, std::move(ranges)});
    return held;
}

std::string to_text(std::span<const held_layer> held) {
    std::string text;
    for (const held_layer& layer : held) {
        if (!text.empty()) text += ',';
        text += fmt::format("{}", layer.layer.value);
        char separator = ':';
        for (const expert_range& range : layer.ranges) {
            text += fmt::format("{}{}", separator, range.first.value);
            if (range.count > 1) text += fmt::format("-{}", range.first.value + (range.count - 1));
            separator = '+';
        }
    }
    return text;
}

}  // namespace kvasir::model

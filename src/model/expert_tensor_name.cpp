#include <charconv>

#include "model/expert_map.hpp"

namespace kvasir::model {
namespace {

bool take_prefix(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

/// A decimal number as llama.cpp prints it: no sign, no leading zero.
std::optional<std::uint32_t> take_number(std::string_view& text) {
    std::uint32_t value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto n_digits = static_cast<std::size_t>(stop - text.data());
    if (status != std::errc() || value > max_layer_number || (n_digits > 1 && text.front() == '0')) return std::nullopt;
    text.remove_prefix(n_digits);
    return value;
}

}  // namespace

std::string_view name_of(expert_role role) {
    switch (role) {
        case expert_role::gate:
            return "gate";
        case expert_role::up:
            return "up";
        case expert_role::gate_up:
            return "gate_up";
        case expert_role::down:
            return "down";
    }
    return "unknown";
}

std::optional<expert_tensor_name> parse_expert_tensor_name(std::string_view name) {
    struct role_text {
        std::string_view text;
        expert_role role;
    };
    static constexpr role_text roles[] = {
        {"gate_exps.", expert_role::gate},
        {"up_exps.", expert_role::up},
        {"gate_up_exps.", expert_role::gate_up},
        {"down_exps.", expert_role::down},
    };
    struct part_text {
        std::string_view text;
        expert_part part;
    };
    static constexpr part_text parts[] = {
        {"weight", expert_part::weight},
        {"bias", expert_part::bias},
        {"scale", expert_part::scale},
        {"input_scale", expert_part::input_scale},
    };
    if (!take_prefix(name, "blk.")) return std::nullopt;
    const auto layer = take_number(name);
    if (!layer || !take_prefix(name, ".ffn_")) return std::nullopt;
    for (const role_text& role : roles) {
        std::string_view rest = name;
        if (!take_prefix(rest, role.text)) continue;
        for (const part_text& part : parts)
            if (rest == part.text) return expert_tensor_name{layer_id{*layer}, role.role, part.part};
    }
    return std::nullopt;
}

slab_layout slabs_of(std::string_view name, const std::array<std::int64_t, 4>& ne, std::uint64_t size_bytes) {
    const slab_layout whole{1, size_bytes, 3};
    const auto parsed = parse_expert_tensor_name(name);
    if (!parsed) return whole;
    std::size_t dimension = 0;
    switch (parsed->part) {
        case expert_part::weight:
            dimension = 2;
            break;
        case expert_part::bias:
            dimension = 1;
            break;
        case expert_part::scale:
        case expert_part::input_scale:
            dimension = 0;
            break;
    }
    // Experts are contiguous only where theirs is the outermost dimension.
    for (std::size_t outer = dimension + 1; outer < ne.size(); ++outer)
        if (ne[outer] != 1) return whole;
    const auto n_slabs = static_cast<std::uint64_t>(ne[dimension]);
    if (ne[dimension] <= 0 || size_bytes % n_slabs != 0) return whole;
    return slab_layout{n_slabs, size_bytes / n_slabs, dimension};
}

}  // namespace kvasir::model

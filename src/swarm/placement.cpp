#include "swarm/placement.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir::swarm {

std::vector<std::optional<worker_index>> choose_places(layer_id layer, std::span<const expert_load> experts,
                                                       const coverage& who_holds,
                                                       std::span<const worker_estimate> workers) {
    std::vector<std::optional<worker_index>> places(experts.size());
    std::vector<double> finish_us(workers.size());
    double here_finish_us = 0.0;
    std::ranges::transform(workers, finish_us.begin(), &worker_estimate::fixed_us);

    std::vector<std::size_t> largest_first(experts.size());
    std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
    std::ranges::stable_sort(largest_first, std::greater{}, [&](std::size_t i) { return experts[i].n_rows; });

    for (const std::size_t i : largest_first) {
        double best_us = 0.0;
        for (const worker_index worker : who_holds.holders_of(layer, experts[i].expert)) {
            if (worker >= workers.size() || !workers[worker].available) continue;
            const double candidate_us = finish_us[worker] + workers[worker].per_row_us * experts[i].n_rows;
            if (places[i] && candidate_us >= best_us) continue;
            places[i] = worker;
            best_us = candidate_us;
        }
        if (places[i] && here_finish_us + experts[i].here_us < best_us) places[i].reset();
        if (places[i]) {
            finish_us[*places[i]] = best_us;
        } else if (std::isfinite(experts[i].here_us)) {
            here_finish_us += experts[i].here_us;
        }
    }
    return places;
}

}  // namespace kvasir::swarm

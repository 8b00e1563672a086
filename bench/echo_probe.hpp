// What a network's round trip takes a plain program on this machine: a server that sends back what it gets, behind a
// delaying proxy. Above the nominal time lies what it takes the system to wake up whoever waits.
#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"
#include "bench/link_schedule.hpp"

namespace kvasir::bench {

/// The median of `n_rounds` questions and answers of a few hundred bytes, one after the other.
result<duration> measure_echo(const link_options& link, int n_rounds);

}  // namespace kvasir::bench

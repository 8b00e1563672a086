// ggml's start: its backends, and its log kept off the terminal.
#pragma once

#include <ggml.h>

#include <string>

namespace kvasir::cli {

/// Loads ggml's backends from the program's directory. From then on ggml and llama.cpp print nothing; errors they log
/// are kept for last_ggml_complaint(). Once per process is enough; more do no harm.
void start_ggml();

/// The log callback that start_ggml() gives ggml (a ggml_log_callback), for libraries with a log of their own.
void keep_last_error(ggml_log_level level, const char* text, void* unused);

/// The last error that ggml or llama.cpp logged, or a phrase that says there is none.
std::string last_ggml_complaint();

}  // namespace kvasir::cli

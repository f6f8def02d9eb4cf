// Formats the result of a search as a page for people and as JSON for programs.
#pragma once

#include <functional>
#include <string>

#include "witan/planner/search/search.h"

namespace witan {

// Layouts that fit, fastest first, with memory, time, bubble and bytes by axis; near misses; what was dropped and why;
// how to use the best. `base`: the config that was searched, before with_layout(). `command`: gives the command line
// that leads to a config.
std::string format_search(const SearchResult& result, const RunConfig& base, const Cluster& cluster,
                          const SearchOptions& options, const std::function<std::string(const RunConfig&)>& command);

// The held keys: "tensor_model_parallel_size = 4, micro_batch_size = 2"; empty if none are held.
std::string held_text(const RunConfig& base, const SearchOptions& options);

// "the nearest that work are 32 and 64 GPUs", for when no layout of the given number of GPUs is possible.
std::string nearest_gpus_text(const SearchResult& result);

// One object: gpus, memory_bytes, held {key: a number, boolean or word}, considered, refused {key: number}, too_large,
// estimated_too_large, slower, planned, fit, assumed_vocabulary if there is one, nearest_gpus if nothing is possible,
// best and near [{mesh, flags, needed_bytes, step_seconds, tokens_per_second_per_gpu, bubble, sent: bytes by axis of
// the busiest rank}].
std::string search_json(const SearchResult& result, const RunConfig& base, const SearchOptions& options);

}  // namespace witan

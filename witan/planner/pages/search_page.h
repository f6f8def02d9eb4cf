// What a search found, as a page for people and as JSON for programs.
#pragma once

#include <functional>
#include <string>

#include "witan/planner/search/search.h"

namespace witan {

// Layouts that fit, the fastest first, with memory, time, bubble and bytes by axis; near misses; what was dropped and
// why; how to use the best. `base`: the config that was searched from, before with_layout(). `command`: a call that
// comes to a config.
std::string format_search(const SearchResult& result, const RunConfig& base, const Cluster& cluster,
                          const SearchOptions& options, const std::function<std::string(const RunConfig&)>& command);

// "tensor_model_parallel_size = 4, micro_batch_size = 2": what the limits hold; or nothing.
std::string held_text(const RunConfig& base, const SearchOptions& options);

// "the nearest that work are 32 and 64 GPUs", where no layout of the GPUs that were asked for is possible.
std::string nearest_gpus_text(const SearchResult& result);

// One object: gpus, memory_bytes, held {key: a number, true, false or a word}, considered, refused {key: number},
// too_large, estimated_too_large, slower, planned, fit, where there is one assumed_vocabulary, where nothing is
// possible nearest_gpus, best and near [{mesh, flags, needed_bytes, step_seconds, tokens_per_second_per_gpu, bubble,
// sent: bytes by axis of the rank that sends most}].
std::string search_json(const SearchResult& result, const RunConfig& base, const SearchOptions& options);

}  // namespace witan

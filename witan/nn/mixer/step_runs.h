// The runs of a generation step, for mixers with a recurrence: sequences that begin are computed in chunks, as in a
// forward, and others token by token.
#pragma once

#include "witan/kernels/attention/kv_cache.h"

namespace witan {

// Calls whole(run, first) for each run of several tokens that begins a sequence, and continued(runs, first) for all
// others, as many as follow each other at once; `first` is the number of their first token in the step.
template <class Whole, class Continued>
void for_step_runs(const kernels::CacheTokens& tokens, const Whole& whole, const Continued& continued) {
  const auto is_prompt = [](const kernels::CacheRun& run) { return run.past == 0 && run.count > 1; };
  int64_t first = 0;
  for (size_t i = 0, next = 0; i < tokens.runs.size(); i = next) {
    next = i + 1;
    const bool begins = is_prompt(tokens.runs[i]);
    while (!begins && next < tokens.runs.size() && !is_prompt(tokens.runs[next])) ++next;
    const kernels::CacheTokens some = tokens.part(i, next - i, first);
    if (begins)
      whole(some.runs.front(), first);
    else
      continued(some, first);
    first += some.rows.elements();
  }
}

}  // namespace witan

// Pipelines of many sizes, and a notation for their work.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "witan/parallel/schedule.h"

namespace witan::testing {

using Pass = Work::Pass;
using Passes = Pipeline::Passes;

// "F3" is the forward of micro-batch 3; "B3.1" the backward through chunk 1, if there are several chunks.
inline std::string text_of(const Pipeline& pipeline, const Work& work) {
  std::ostringstream text;
  text << (work.pass == Pass::forward ? 'F' : 'B') << work.micro_batch;
  if (pipeline.chunks > 1) text << '.' << work.chunk;
  return text.str();
}

inline std::string text_of(const Pipeline& pipeline) {
  std::ostringstream text;
  text << pipeline.stages << " stages of " << pipeline.chunks << " chunks, " << pipeline.micro_batches
       << " micro-batches, " << (pipeline.passes == Passes::both ? "both passes" : "forward");
  return text.str();
}

// Every size of interest, with the text that the test shows when it fails.
inline void for_pipelines(const std::function<void(const Pipeline&)>& body) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int chunks = 1; chunks <= (stages == 1 ? 1 : 4); ++chunks)
      for (int64_t micro_batches = 1; micro_batches <= 40; ++micro_batches)
        for (const Passes passes : {Passes::forward, Passes::both}) {
          const Pipeline pipeline{stages, chunks, micro_batches, passes};
          SCOPED_TRACE(text_of(pipeline));
          body(pipeline);
        }
}

// The time of a step whose forwards take one unit and backwards two.
inline int64_t units_of(const Work& work) {
  return work.pass == Pass::forward ? 1 : 2;
}
inline int64_t work_of_stage(const Pipeline& pipeline) {
  return pipeline.micro_batches * pipeline.chunks * (pipeline.passes == Passes::both ? 3 : 1);
}

}  // namespace witan::testing

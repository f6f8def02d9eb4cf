// Generation steps of a recurrence by its forward over the last chunk of each sequence, so that tokens have the bits of
// training: for GPUs, whose kernels compute a whole chunk at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {

// An input of the recurrence, of a step's tokens and of each row's last chunk as far as it has been read. What lies
// beyond that must be finite.
struct ChunkInput {
  Tensor x;     // [T, ..]
  Tensor kept;  // [R, chunk, ..]
};

// Tokens of one chunk or more, in order. Undefined `last`: the state after them is not wanted.
struct ChunkPass {
  Tensor o;                    // [B, S, C]
  Tensor last, first;          // [B, ..]: the states after the tokens and before them
  std::vector<Tensor> inputs;  // [B, S, ..]
};

// The steps of a state whose rows hold what was before their last chunk. forward(pass) runs the recurrence.
template <class Forward>
class ChunkSteps {
 public:
  // o [T, C]   states [R, ..]
  ChunkSteps(Stream& stream, const Tensor& o, const Tensor& states, std::vector<ChunkInput> inputs,
             const Forward& forward)
      : stream_(stream),
        o_(o),
        states_(states),
        inputs_(std::move(inputs)),
        forward_(forward),
        rows_(states.size(0)),
        chunk_(inputs_.front().kept.size(1)) {}

  void run(const kernels::CacheTokens& tokens) {
    int64_t first = 0;
    for (size_t i = 0, next = 0; i < tokens.runs.size(); i = next) {
      next = i + 1;
      const kernels::CacheRun& run = tokens.runs[i];
      if (run.past == 0) stream_.zero(states_.narrow(0, run.row, 1));
      if (run.count > 1) {
        several(run, first);
        first += run.count;
        continue;
      }
      while (next < tokens.runs.size() && tokens.runs[next].count == 1 && tokens.runs[next].past > 0) ++next;
      single(tokens.part(i, next - i, first), first);
      first += static_cast<int64_t>(next - i);
    }
  }

 private:
  static Tensor as_row(const Tensor& x) {  // [S, ..] -> [1, S, ..]
    return x.reshape({1, x.size(0), x.elements() / x.size(0)});
  }
  Tensor state_of(int64_t row) const { return states_.narrow(0, row, 1); }
  std::vector<Tensor> kept_of(int64_t row, int64_t count) const {
    std::vector<Tensor> kept;
    for (const ChunkInput& in : inputs_) kept.push_back(in.kept.narrow(0, row, 1).narrow(1, 0, count));
    return kept;
  }

  // One token of each run: all rows' chunks are computed, since these lie side by side.
  void single(const kernels::CacheTokens& some, int64_t first) {
    const auto n = static_cast<int64_t>(some.runs.size());
    std::vector<Tensor> all;
    for (const ChunkInput& in : inputs_) {
      const int64_t channels = in.kept.size(2);
      kernels::append_to_cache(stream_, in.kept.reshape({rows_, chunk_, 1, channels}),
                               in.x.narrow(0, first, n).reshape({1, n, 1, channels}), some);
      all.push_back(in.kept);
    }
    const Tensor outputs = stream_.empty({rows_, chunk_, o_.size(1)}, o_.dtype());
    forward_(ChunkPass{outputs, {}, states_, all});
    std::vector<int32_t> places;
    for (const kernels::CacheRun& run : some.runs)
      places.push_back(static_cast<int32_t>(run.row * chunk_ + run.past % chunk_));
    const Tensor ids = stream_.empty({n}, DType::i32);
    stream_.write(ids, places.data());
    kernels::embedding_forward(stream_, o_.narrow(0, first, n), ids, outputs.reshape({rows_ * chunk_, o_.size(1)}));
    for (const kernels::CacheRun& run : some.runs)
      if (run.past % chunk_ == chunk_ - 1)
        forward_(
            ChunkPass{outputs.narrow(0, run.row, 1), state_of(run.row), state_of(run.row), kept_of(run.row, chunk_)});
  }

  void several(const kernels::CacheRun& run, int64_t token) {
    const int64_t end = run.past + run.count;
    for (int64_t position = run.past, count = 0; position < end; position += count, token += count) {
      const int64_t slot = position % chunk_;
      count = std::min(chunk_ - slot, end - position);
      if (slot == 0 && count == chunk_) {
        count = (end - position) / chunk_ * chunk_;
        whole_chunks(run.row, token, count);
      } else {
        part_of_chunk(run.row, token, slot, count);
      }
    }
  }
  void whole_chunks(int64_t row, int64_t token, int64_t count) {
    std::vector<Tensor> inputs;
    for (const ChunkInput& in : inputs_) inputs.push_back(as_row(in.x.narrow(0, token, count)));
    forward_(ChunkPass{as_row(o_.narrow(0, token, count)), state_of(row), state_of(row), inputs});
  }
  void part_of_chunk(int64_t row, int64_t token, int64_t slot, int64_t count) {
    for (const ChunkInput& in : inputs_)
      stream_.copy(in.kept.narrow(0, row, 1).narrow(1, slot, count), as_row(in.x.narrow(0, token, count)));
    const int64_t read = slot + count;
    const Tensor outputs = stream_.empty({1, read, o_.size(1)}, o_.dtype());
    forward_(ChunkPass{outputs, read == chunk_ ? state_of(row) : Tensor(), state_of(row), kept_of(row, read)});
    stream_.copy(as_row(o_.narrow(0, token, count)), outputs.narrow(1, slot, count));
  }

  Stream& stream_;
  const Tensor o_, states_;
  const std::vector<ChunkInput> inputs_;
  const Forward& forward_;
  const int64_t rows_, chunk_;
};

}  // namespace witan

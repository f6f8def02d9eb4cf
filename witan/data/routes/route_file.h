// The experts that tokens were routed to, as one rank records them: a file of a step (docs/formats/routes.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// Positions [first, first + count) of every sequence.
struct PositionRange {
  int64_t first = 0, count = 0;
  bool operator==(const PositionRange&) const = default;
};

struct RouteFile {
  // Training routes are found by their step. Others are found by their tokens, wherever these come up in training.
  enum class Kind : uint8_t { training = 0, evaluation = 1, generation = 2 };
  enum class Weights : uint8_t { f32 = 0, bf16 = 1 };

  Kind kind = Kind::training;
  Weights stored_as = Weights::f32;
  int64_t step = 0;               // of training, of an evaluation's batches; from 1
  int64_t experts = 0, topk = 0;  // E, K
  int64_t all_sequences = 0;      // of the step, on all ranks
  int64_t sequence_length = 0;    // of each of them
  int64_t first_sequence = 0;     // this file has [first_sequence, first_sequence + sequences) of them, in the order
  int64_t sequences = 0;          // of the global batch
  std::vector<PositionRange> positions;  // of those this file has P each, in order

  struct Layer {
    int64_t layer = 0;           // number in the model, dense layers counted
    std::vector<int32_t> ids;    // [sequences, P, K], each token's as its router ordered them
    std::vector<float> weights;  // [sequences, P, K]
  };
  std::vector<int32_t> tokens;  // [sequences, P]
  std::vector<Layer> layers;    // by number

  int64_t positions_each() const;  // P
};

std::string encode_routes(const RouteFile& file);
// Throws CorruptionError for bytes that are not whole or not consistent, naming `source` and the place. What it returns
// can be trusted: ids are experts that differ within a token, ranges lie within the sequence, sizes match.
RouteFile parse_routes(std::string_view bytes, const std::string& source);
RouteFile read_routes(const fs::path& path);

}  // namespace witan

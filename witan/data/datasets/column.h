// Named columns: values of a sample besides its tokens, such as the advantages and old log-probabilities of policy
// gradients. They follow the tokens from the sample source to the objective (train/step/objective.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace witan {

struct ColumnSpec {
  enum class Per : uint8_t {
    token,   // a value for each target
    sample,  // one for the whole row
  };
  std::string name;
  Per per = Per::token;

  bool operator==(const ColumnSpec&) const = default;
};

// A column of a batch of B rows of S tokens.
struct Column {
  ColumnSpec spec;
  std::vector<float> values = {};  // [B, S], with the value of each place's target; or [B]
};

}  // namespace witan

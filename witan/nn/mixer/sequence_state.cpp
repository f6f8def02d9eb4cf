#include "witan/nn/mixer/sequence_state.h"

namespace witan {

// A layer may go on from fewer tokens than another allows, which the other is then asked about.
int64_t resumable(const SequenceStates& states, int64_t wanted, int64_t held, int64_t reach) {
  for (int64_t before = -1; wanted > 0 && wanted != before;) {
    before = wanted;
    for (const auto& state : states)
      if (state) wanted = state->resumable(wanted, held, reach);
  }
  return wanted;
}

void copy_row(Stream& stream, const SequenceStates& states, int64_t from, int64_t to) {
  for (const auto& state : states)
    if (state) state->copy_row(stream, from, to);
}

}  // namespace witan

#include "witan/data/samples/sample_source.h"

#include <algorithm>

namespace witan {

// The value of an input's place is that of the token behind it, its target.
void SampleSource::read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const {
  for (const Piece& piece : pieces_of(index)) {
    const auto places = static_cast<size_t>(piece.places);
    dataset().read_column(column, piece.document, piece.begin + 1, out.first(places));
    out = out.subspan(places);
  }
  std::ranges::fill(out, 0.0f);
}

}  // namespace witan

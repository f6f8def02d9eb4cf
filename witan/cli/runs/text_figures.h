// Tables, and curves drawn with letters, for a terminal.
#pragma once

#include <string>
#include <vector>

#include "witan/report/events/curve.h"

namespace witan::cli {

struct LetteredCurve {
  char letter = 'a';
  Curve curve;
};

// `width` x `height` characters of plot, an axis of values at the left and one of steps below. Of several curves in one
// place '*' is drawn. The axis ends at the highest 95th percentile of a curve, and values above it are drawn at the
// upper edge, so that the beginning of a loss does not flatten the rest. Empty where no curve has a point.
std::string text_curves(const std::vector<LetteredCurve>& curves, size_t width, size_t height);

enum class Align : bool { left, right };

// Rows of cells, in columns that are as wide as their widest cell, with two blanks between them. A column without an
// alignment is a left one. Control sequences (colours) take no room. Every line ends in a line feed.
std::string text_table(const std::vector<std::vector<std::string>>& rows, const std::vector<Align>& aligned);

}  // namespace witan::cli

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

// A plot of `width` x `height` characters, with an axis of values on the left and one of steps below. '*' marks places
// where curves meet. The axis ends at the highest 95th percentile of a curve, and larger values are drawn at the upper
// edge, so that the start of a loss does not flatten the rest. Empty if no curve has a point.
std::string text_curves(const std::vector<LetteredCurve>& curves, size_t width, size_t height);

enum class Align : bool { left, right };

// Rows of cells in columns as wide as their widest cell, separated by two spaces. Columns are aligned left unless
// `aligned` says otherwise. Control sequences (colours) have no width. Every line ends with a line feed.
std::string text_table(const std::vector<std::vector<std::string>>& rows, const std::vector<Align>& aligned);

}  // namespace witan::cli

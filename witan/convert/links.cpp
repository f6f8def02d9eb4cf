#include "witan/convert/links.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/elements/block_codec.h"

namespace witan {
namespace {

constexpr size_t kDims = 4;

// The first element of a row of a normalised piece; a row is a run of its last dim.
int64_t place_of(const SharedBox& piece, const SharedBox::Side& side, int64_t row) {
  int64_t at = side.first;
  for (size_t dim = kDims - 1; dim-- > 0;) {
    at += row % piece.sizes[dim] * side.strides[dim];
    row /= piece.sizes[dim];
  }
  return at;
}

// The first row that ends after `first`. The rows of a normalised piece are in the tensor's order.
int64_t first_row(const SharedBox& piece, int64_t first, int64_t rows) {
  const int64_t last = (piece.sizes[3] - 1) * piece.to.strides[3];
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (place_of(piece, piece.to, middle) + last < first)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The range of a row's elements that lie in [first, end).
std::pair<int64_t, int64_t> within(const SharedBox& piece, int64_t begin, int64_t first, int64_t end) {
  const int64_t stride = std::max<int64_t>(piece.to.strides[3], 1);
  const auto up = [&](int64_t to) { return to <= begin ? 0 : (to - begin + stride - 1) / stride; };
  return {std::min(up(first), piece.sizes[3]), std::min(up(end), piece.sizes[3])};
}

// Copies `count` elements of `from`, from element `at` on and `stride` apart.
void copy_from(const HeldTensor& from, int64_t at, int64_t stride, int64_t count, Element type, std::byte* to) {
  if (block_codec(from.type))
    copy_from_blocks(type, to, from.type, from.bytes.data(), at, stride, count);
  else
    copy_elements(type, to, from.type, from.bytes.data() + at * size_of(from.type), stride, count);
}

void copy_mapped(ValueMap map, const HeldTensor& from, int64_t at, int64_t stride, int64_t count, Element type,
                 std::byte* to) {
  if (map == ValueMap::same) return copy_from(from, at, stride, count, type, to);
  std::vector<double> values(static_cast<size_t>(count));
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  copy_from(from, at, stride, count, Element::f64, bytes);
  for (double& value : values) value = mapped(map, value);
  copy_elements(type, to, Element::f64, bytes, 1, count);
}

}  // namespace

ValueMap inverse_of(ValueMap map) {
  switch (map) {
    case ValueMap::plus_one:
      return ValueMap::minus_one;
    case ValueMap::minus_one:
      return ValueMap::plus_one;
    case ValueMap::minus_exp:
      return ValueMap::log_of_minus;
    case ValueMap::log_of_minus:
      return ValueMap::minus_exp;
    case ValueMap::same:
      break;
  }
  return ValueMap::same;
}

double mapped(ValueMap map, double value) {
  switch (map) {
    case ValueMap::plus_one:
      return value + 1;
    case ValueMap::minus_one:
      return value - 1;
    case ValueMap::minus_exp:
      return -std::exp(value);
    case ValueMap::log_of_minus:
      return std::log(-value);
    case ValueMap::same:
      break;
  }
  return value;
}

void SharedBox::normalise() {
  std::array<size_t, kDims> order{0, 1, 2, 3};
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return std::pair(sizes[a] != 1, -to.strides[a]) < std::pair(sizes[b] != 1, -to.strides[b]);
  });
  const SharedBox was = *this;
  for (size_t i = 0; i < kDims; ++i) {
    sizes[i] = was.sizes[order[i]];
    to.strides[i] = was.to.strides[order[i]];
    from.strides[i] = was.from.strides[order[i]];
  }
  const auto joins = [&](const Side& side, size_t dim) {
    return side.strides[dim - 1] == side.strides[dim] * sizes[dim];
  };
  for (size_t dim = kDims - 1; dim > 0 && sizes[dim - 1] != 1;) {
    if (!joins(to, dim) || !joins(from, dim)) {
      --dim;
      continue;
    }
    sizes[dim] *= sizes[dim - 1];
    for (size_t i = dim - 1; i > 0; --i) {
      sizes[i] = sizes[i - 1];
      to.strides[i] = to.strides[i - 1];
      from.strides[i] = from.strides[i - 1];
    }
    sizes[0] = 1;
    to.strides[0] = from.strides[0] = 0;
  }
}

SharedBox SharedBox::inverse() const {
  SharedBox other = *this;
  std::swap(other.to, other.from);
  other.values = inverse_of(values);
  other.normalise();
  return other;
}

void check_cover(const Link& link, std::string_view where) {
  std::vector<std::pair<int64_t, int64_t>> runs;  // begin, end
  for (const SharedBox& piece : link.pieces) {
    const int64_t rows = piece.elements() == 0 ? 0 : piece.elements() / piece.sizes[3];
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t begin = place_of(piece, piece.to, row);
      runs.emplace_back(begin, begin + piece.sizes[3]);
    }
  }
  std::ranges::sort(runs);
  int64_t at = 0;
  const auto fail = [&](int64_t element, const char* what) {
    throw CheckpointError(cat(where, ": element ", element, " of \"", clipped(link.name), "\" ", link.shape, what));
  };
  for (const auto& [begin, end] : runs) {
    if (begin < at) fail(begin, " comes from two places");
    if (begin > at) fail(at, " comes from nowhere");
    at = end;
  }
  if (at != link.elements() - link.padding)
    fail(at, at > link.elements() ? " is beyond its end" : " comes from nowhere");
}

std::vector<Link> inverse_links(const std::vector<Link>& links,
                                const std::vector<std::pair<std::string, Shape>>& order) {
  std::map<std::string, std::vector<SharedBox>> pieces;
  for (const Link& link : links)
    for (const SharedBox& piece : link.pieces) pieces[piece.from.name].push_back(piece.inverse());
  std::vector<Link> others;
  for (const auto& [name, shape] : order) others.push_back({name, shape, std::move(pieces[name])});
  return others;
}

void gather(const Link& link, int64_t first, int64_t count, Element type, std::byte* out,
            const std::function<HeldTensor(const std::string& name)>& source) {
  const int64_t width = size_of(type), end = first + count, made = link.elements() - link.padding;
  if (end > made) {
    const int64_t zeros = std::max(made, first);
    std::fill(out + (zeros - first) * width, out + count * width, std::byte{0});
  }
  for (const SharedBox& piece : link.pieces) {
    if (piece.elements() == 0) continue;
    const int64_t rows = piece.elements() / piece.sizes[3];
    std::optional<HeldTensor> from;
    for (int64_t row = first_row(piece, first, rows); row < rows; ++row) {
      const int64_t begin = place_of(piece, piece.to, row);
      if (begin >= end) break;
      const auto [low, high] = within(piece, begin, first, end);
      if (low >= high) continue;
      if (!from) from = source(piece.from.name);
      const int64_t at = place_of(piece, piece.from, row) + low * piece.from.strides[3];
      std::byte* to = out + (begin + low * piece.to.strides[3] - first) * width;
      assert(piece.to.strides[3] == 1 || piece.sizes[3] == 1);
      copy_mapped(piece.values, *from, at, piece.from.strides[3], high - low, type, to);
    }
  }
}

}  // namespace witan

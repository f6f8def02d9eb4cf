// The mapping between elements of Witan's tensors and another program's. Each element is in exactly one piece.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "witan/convert/elements/elements.h"
#include "witan/tensor/shape.h"

namespace witan {

// How values of one tensor become those of the other. They are computed in double precision.
enum class ValueMap : uint8_t {
  same,
  plus_one,
  minus_one,
  minus_exp,     // -exp(x)
  log_of_minus,  // ln(-x)
};
double mapped(ValueMap map, double value);
ValueMap inverse_of(ValueMap map);

// A box of elements that two tensors share. Its element (i, j, k, l) is element first + i strides[0] + … of either flat
// tensor.
struct SharedBox {
  struct Side {
    std::string name;
    int64_t first = 0;
    std::array<int64_t, 4> strides{};
  };
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  Side to, from;
  ValueMap values = ValueMap::same;  // an element of `to` is this of its element of `from`

  int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  // Swaps the sides, with dims in the order of the new `to`, and inverts the map of values.
  SharedBox inverse() const;
  // Sorts the dims by descending stride of `to`, and merges dims that are contiguous on both sides.
  void normalise();
};

// One tensor and the pieces that it is made of.
struct Link {
  std::string name;
  Shape shape;
  std::vector<SharedBox> pieces;  // `to` is this tensor; normalised
  int64_t padding = 0;            // number of elements at the end that are 0 and in no piece

  int64_t elements() const { return shape.elements(); }
};

// Throws CheckpointError("WHERE: …") unless every element except the padding is in exactly one piece. The time grows
// with the number of contiguous runs, not with their length.
void check_cover(const Link& link, std::string_view where);

// The links of the tensors on the other side, with the names and shapes in `order`.
std::vector<Link> inverse_links(const std::vector<Link>& links,
                                const std::vector<std::pair<std::string, Shape>>& order);

// A whole tensor in a file or in memory.
struct HeldTensor {
  Element type = Element::f32;
  std::span<const std::byte> bytes;
};

// Writes elements [first, first + count) of the linked tensor to `out`, as `type`. `source` returns the tensors that it
// is made of.
void gather(const Link& link, int64_t first, int64_t count, Element type, std::byte* out,
            const std::function<HeldTensor(const std::string& name)>& source);

}  // namespace witan

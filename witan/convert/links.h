// Which elements of Witan's tensors are which of another program's: every element of both stands in exactly one piece.
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

// A box of elements that two tensors share. Element (i, j, k, l) of it is element first + i strides[0] + … of the flat
// tensor, on either side.
struct SharedBox {
  struct Side {
    std::string name;
    int64_t first = 0;
    std::array<int64_t, 4> strides{};
  };
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  Side to, from;

  int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  // With the sides exchanged, and the dims in the order of the new `to`.
  SharedBox inverse() const;
  // The dims in falling order of to's strides; those that are one run on both sides are made one.
  void normalise();
};

// One tensor and all that it is made of.
struct Link {
  std::string name;
  Shape shape;
  std::vector<SharedBox> pieces;  // whose `to` this tensor is; normalised, with runs of neighbouring elements
  int64_t padding = 0;            // elements at the end that are 0 and in no piece

  int64_t elements() const { return shape.elements(); }
};

// Throws CheckpointError("WHERE: …") unless every element but the padding is in exactly one piece. The time depends on
// the runs of the pieces, however long they are.
void check_cover(const Link& link, std::string_view where);

// The links of the tensors on the other side, whose shapes are given: each in the order of `order`.
std::vector<Link> inverse_links(const std::vector<Link>& links,
                                const std::vector<std::pair<std::string, Shape>>& order);

// A whole tensor, as it lies in a file or in memory.
struct HeldTensor {
  Element type = Element::f32;
  std::span<const std::byte> bytes;
};

// Elements [first, first + count) of the linked tensor, as `type`, to `out`. `source` gives the tensors that it is made
// of.
void gather(const Link& link, int64_t first, int64_t count, Element type, std::byte* out,
            const std::function<HeldTensor(const std::string& name)>& source);

}  // namespace witan

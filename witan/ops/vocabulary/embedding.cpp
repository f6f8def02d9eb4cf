#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan::ops {
namespace {

void check_ids(const Tensor& ids, int64_t V) {
  int64_t t = 0;
  for (const int32_t id : ids.span<int32_t>()) {
    require<DataError>(id >= 0 && id < V, "embedding: id ", id, " at index ", t, " is not in the vocabulary of ", V,
                       " entries: was the text encoded with another tokenizer?");
    ++t;
  }
}

}  // namespace

Var embedding(Tape& tape, const Tensor& ids, const Var& w) {
  return embedding(tape, ids, w, {0, w.shape().dims() == 2 ? w.size(0) : 0});
}

Var embedding(Tape& tape, const Tensor& ids, const Var& w, const VocabularyPart& part) {
  require<ShapeError>(w.shape().dims() == 2 && is_floating(w.dtype()), "embedding: w must be [V, D] and floating, got ",
                      w.dtype(), " ", w.shape());
  require<ShapeError>(ids.dtype() == DType::i32 && ids.contiguous() && ids.shape().dims() < Shape::kMostDims,
                      "embedding: ids must be contiguous int32 of at most ", Shape::kMostDims - 1, " dims, got ",
                      ids.dtype(), " ", ids.shape());
  const int64_t begin = part.begin, rows = w.size(0);
  require<ShapeError>(begin >= 0 && begin + rows <= part.entries(), "embedding: rows [", begin, ", ", begin + rows,
                      ") are not within the vocabulary of ", part.entries(), " entries");
  Stream& s = tape.stream();
  if (s.device().kind == Device::Kind::cpu) check_ids(ids, part.size);  // a GPU is not waited for
  Shape shape = ids.shape();
  shape.append(w.size(1));
  const Tensor y = s.empty(shape, w.dtype());
  kernels::embedding_forward(s, y, ids, w.value(), begin);
  return tape.record(
      "embedding", y, {w}, [w = tape.slot(w), ids = tape.save(ids), begin](Backward& b, const Tensor& dy) {
        b.write(w, [&](const Tensor& dw, Write how) {
          const Tensor tokens = b.value(ids);
          const Tensor order = b.stream().empty({dw.size(0) + 1 + tokens.elements()}, DType::i32, MemoryTag::workspace);
          kernels::embedding_backward(b.stream(), dw, how, order, dy, tokens, begin);
        });
      });
}

}  // namespace witan::ops

#include "witan/tensor/memory_block.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

template <size_t N>
void keep(std::array<char, N>& to, std::string_view text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to.begin());
}
template <size_t N>
std::string_view kept(const std::array<char, N>& text) {
  return {text.data(), static_cast<size_t>(std::ranges::find(text, '\0') - text.begin())};
}

}  // namespace

std::string_view name_of(MemoryTag tag) {
  constexpr std::string_view names[] = {"weights",     "gradients",     "optimizer",
                                        "activations", "communication", "workspace"};
  return names[static_cast<size_t>(tag)];
}

MemoryPlace::MemoryPlace(const TraceContext& context)
    : step_(context.step), micro_batch_(context.micro_batch), phase_(static_cast<uint8_t>(context.phase)) {
  keep(module_, context.module);
  keep(op_, context.op);
}

TraceContext MemoryPlace::context() const {
  return {step_, static_cast<TraceContext::Phase>(phase_), micro_batch_, kept(module_), kept(op_)};
}

bool MemoryPlace::empty() const {
  return context() == TraceContext();
}

std::string table_of(const MemorySnapshot& snapshot, size_t most) {
  std::string table;
  for (size_t i = 0; i < std::min(most, snapshot.blocks.size()); ++i) {
    const MemoryBlock& block = snapshot.blocks[i];
    table += fmt::format("{:>12}  {:<13}  {}\n", format_bytes(static_cast<double>(block.bytes)), name_of(block.tag),
                         cat(name_of(block.dtype), " ", block.shape, "  ", describe(block.place.context())));
  }
  return table;
}

}  // namespace witan

#include "witan/nn/module.h"

#include <ranges>

#include "witan/base/error.h"
#include "witan/kernels/fp8/fp8.h"
#include "witan/ops/fp8/fp8_quantiser.h"

namespace witan {

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& parameter : own_) all.push_back(parameter.get());
  for (const Module* child : children_) {
    const auto theirs = child->parameters();
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

std::vector<Buffer*> Module::buffers() const {
  std::vector<Buffer*> all;
  for (const auto& buffer : own_buffers_) all.push_back(buffer.get());
  for (const Module* child : children_) {
    const auto theirs = child->buffers();
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

void Module::visit(const std::function<void(Module&)>& visitor) {
  visitor(*this);
  for (Module* child : children_) child->visit(visitor);
}

void Module::attach(const ModelServices& services) {
  for (Module* child : children_) child->attach(services);
}

bool Builder::multiplies_in_fp8(const Parameter& weight) const {
  if (!fp8 || (kind != ParameterKind::matrices && !weight.spec().expert)) return false;
  const Shape& shape = weight.shape();
  const int64_t rows = shape[shape.dims() - 2], columns = shape.last();
  require<ConfigError>(rows % kernels::kFp8Multiple == 0 && columns % kernels::kFp8Multiple == 0,
                       "fp8_format: ", weight.name(), " is ", shape,
                       " on a rank, and products in 8 bits take rows and columns that are "
                       "multiples of ",
                       kernels::kFp8Multiple,
                       "; change the model's sizes or their number of ranks, or "
                       "set fp8_format = \"none\"");
  return true;
}

namespace {

constexpr const char *kFp8Reference = "_fp8_reference", *kFp8Amax = "_fp8_amax", *kFp8History = "_fp8_history";

}  // namespace

bool is_fp8_state(std::string_view name) {
  return name.ends_with(kFp8Reference) || name.ends_with(kFp8Amax) || name.ends_with(kFp8History);
}

std::shared_ptr<const ops::Fp8Quantiser> Module::add_fp8(const Builder& builder, const Parameter& weight) {
  if (!builder.multiplies_in_fp8(weight)) return nullptr;
  const ops::Fp8Recipe& recipe = *builder.fp8;
  std::unique_ptr<ops::Fp8KeptWeight> kept;
  if (builder.fp8_rounds)
    kept = std::make_unique<ops::Fp8KeptWeight>(builder.stream, weight.shape(), builder.fp8_rounds);
  if (recipe.scales != ops::Fp8Recipe::Scales::delayed)
    return std::make_shared<const ops::Fp8Quantiser>(recipe, std::move(kept));

  const bool expert = weight.spec().expert;
  const int64_t experts = expert ? weight.global_shape()[0] : 1, count = expert ? weight.shape()[0] : 1;
  const std::string name = weight.name().substr(builder.path.empty() ? 0 : builder.path.size() + 1);
  const auto add = [&](const char* what, const Shape& shape, BufferSpec::Rule rule) -> const Buffer& {
    const bool shared = rule == BufferSpec::Rule::largest;
    return add_buffer(builder, name + what, shape, DType::f32, 0, rule,
                      shared ? Placement::Uses::own : Placement::Uses::same);
  };
  const Shape scales = {ops::kFp8Operands, experts};
  const Buffer& reference = add(kFp8Reference, scales, BufferSpec::Rule::replicated);
  const Buffer& amax = add(kFp8Amax, scales, BufferSpec::Rule::largest);
  const Buffer* const history =
      recipe.history > 1 ? &add(kFp8History, {recipe.history, ops::kFp8Operands, experts}, BufferSpec::Rule::replicated)
                         : nullptr;
  delayed_scales_.push_back({&reference, &amax, history, recipe.factor});
  return std::make_shared<const ops::Fp8Quantiser>(
      recipe, std::move(kept),
      ops::Fp8Magnitudes{reference.value(), [&amax] { return amax.share(); }, expert ? builder.expert_rank * count : 0,
                         count});
}

Parameter& Module::add_parameter(const Builder& builder, const std::string& name, const Shape& shape,
                                 Initialization init, bool weight_decay, TensorSplit tensor_split) {
  const bool own_tokens =
      !tensor_split.any() && builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard;
  ParameterSpec spec{
      (builder / name).path, shape, builder.dtype, init,
      weight_decay,          false, tensor_split,  own_tokens ? Placement::Uses::own : Placement::Uses::same};
  spec.unit = builder.unit;
  spec.chunk = builder.chunk;
  spec.tied = builder.tied;
  spec.copy = builder.copy;
  spec.kind = builder.kind;
  spec.fused_with_previous = builder.fused_with_previous && name == "weight";
  const auto part = spec.part(1, 0, builder.tensor_ranks(), builder.tensor_rank());
  return add(builder, std::move(spec), part, name == "weight");
}

Parameter& Module::add_expert_parameter(const Builder& builder, const std::string& name, const Shape& shape,
                                        Initialization init, TensorSplit tensor_split) {
  const bool biases = builder.kind == ParameterKind::biases;  // which do not decay
  ParameterSpec spec{(builder / name).path, shape, builder.dtype, init, !biases, true, tensor_split};
  spec.unit = builder.unit;
  spec.chunk = builder.chunk;
  spec.kind = biases ? ParameterKind::biases : ParameterKind::experts;
  const auto part =
      spec.part(builder.expert_ranks, builder.expert_rank, builder.expert_tensor_ranks, builder.expert_tensor_rank);
  return add(builder, std::move(spec), part, false);
}

Buffer& Module::add_buffer(const Builder& builder, const std::string& name, const Shape& shape, DType dtype,
                           double initial, BufferSpec::Rule rule, Placement::Uses uses) {
  BufferSpec spec{(builder / name).path, shape, dtype, initial, rule, uses, builder.chunk, builder.copy};
  own_buffers_.push_back(std::make_unique<Buffer>(builder.stream, std::move(spec)));
  return *own_buffers_.back();
}

void Module::after_update(Stream& stream, const Tensor& step) {
  for (const DelayedScales& scales : delayed_scales_) {
    const Tensor history = scales.history ? scales.history->value() : Tensor();
    kernels::fp8_next_references(stream, {scales.reference->value(), history, scales.amax->value()}, step,
                                 scales.factor);
  }
}

// `placed`: where the builder says.
Parameter& Module::add(const Builder& builder, ParameterSpec spec, const ParameterSpec::Part& part, bool placed) {
  spec.frozen = builder.frozen && builder.frozen(spec);
  if (builder.format) spec.format = builder.format(spec);
  if (builder.values_later || spec.in_codes())
    own_.push_back(std::make_unique<Parameter>(std::move(spec), part));
  else
    own_.push_back(std::make_unique<Parameter>(builder.stream, std::move(spec), part, builder.seed, builder.torch.get(),
                                               placed ? builder.place : Tensor()));
  return *own_.back();
}

ModuleObserver::ModuleObserver(Module& module, ModuleHooks hooks)
    : hooks_(std::make_shared<const ModuleHooks>(std::move(hooks))) {
  std::erase_if(module.observers_, [](const auto& observer) { return observer.expired(); });
  module.observers_.push_back(hooks_);
}

namespace {

using Hook = std::function<void()> ModuleHooks::*;

void call(const std::weak_ptr<const ModuleHooks>& observer, Hook hook) {
  const auto hooks = observer.lock();
  if (hooks && (*hooks).*hook) ((*hooks).*hook)();
}
void enter(const Module::Observers& observers, Hook hook) {
  for (const auto& observer : observers) call(observer, hook);
}
void leave(const Module::Observers& observers, Hook hook) {
  for (const auto& observer : observers | std::views::reverse) call(observer, hook);
}

}  // namespace

ModuleScope::ModuleScope(Tape& tape, Module& module)
    : trace_context_(tape.stream(), module.path()), tape_(tape), observers_(module.observers()) {
  if (observers_.empty()) return;
  enter(observers_, &ModuleHooks::before_forward);
  mark_ = tape_.mark([observers = observers_] { leave(observers, &ModuleHooks::after_backward); });
}

ModuleScope::~ModuleScope() {
  if (observers_.empty()) return;
  tape_.close_mark(mark_, [observers = observers_] { enter(observers, &ModuleHooks::before_backward); });
  leave(observers_, &ModuleHooks::after_forward);
}

}  // namespace witan

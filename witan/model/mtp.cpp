#include "witan/model/mtp.h"

#include <utility>

#include "witan/ops/shape/shape.h"

namespace witan {

MtpModule::MtpModule(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes)
    : Module(builder.path),
      unit_(builder.unit),
      embedding_dropout_(builder / "embedding_dropout", config.hidden_dropout),
      enorm_(builder / "enorm", config.norm, config.hidden_size),
      hnorm_(builder / "hnorm", config.norm, config.hidden_size),
      eh_proj_(builder / "eh_proj", 2 * config.hidden_size, config.hidden_size, config.init_method_std),
      block_(builder / "block", config, layer, axes),
      norm_(builder / "norm", config.norm, config.hidden_size) {
  add_child(enorm_);
  add_child(hnorm_);
  add_child(eh_proj_);
  add_child(block_);
  add_child(norm_);
}

// Norms are not recomputed in the backward, since the modules that read their results belong to other units.
MtpModule::Output MtpModule::forward(Tape& tape, const Var& embedding, const Var& h, const Positions& where,
                                     const TokenSource& source, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const UnitGuard unit(tape, units_, unit_);
  Residual x;
  x.x = eh_proj_.forward(
      tape, ops::join_columns(tape, enorm_.forward(tape, embedding, false), hnorm_.forward(tape, h, false)));
  BlockOutput out = block_.forward(tape, std::move(x), {}, where, source, dropping);
  return {norm_.forward_sum(tape, out.x.x, out.x.added, false).normed, std::move(out.router)};
}

void MtpModule::attach(const ModelServices& services) {
  if (services.units) units_ = services.units;
  Module::attach(services);
}

}  // namespace witan

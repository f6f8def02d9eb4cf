#include "witan/convert/export_account.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/model/frozen.h"

namespace witan {
namespace {

// "layers.3.attention.q_proj.weight" is an "attention.q_proj", as those of all layers are.
std::string kind_of(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  if (const size_t number = name.find_first_of(kDigits); number != std::string_view::npos && number > 0)
    if (const size_t dot = name.find('.', number); dot != std::string_view::npos && name[number - 1] == '.')
      name.remove_prefix(dot + 1);
  constexpr std::string_view kPrefix = "block.", kSuffix = ".weight";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return std::string(name);
}

}  // namespace

void ExportAccount::hold(const Link& link) {
  const auto is_held = [&](const SharedBox& piece) { return std::ranges::find(held_, piece.from.name) != held_.end(); };
  if (std::ranges::all_of(link.pieces, is_held)) return;
  weights_.release();
  held_.clear();
  for (const SharedBox& piece : link.pieces) held_.push_back(piece.from.name);
}

void ExportAccount::add(const Link& link, std::string_view type, std::string hash) {
  add(link, {link.name, std::string(type), link.shape, 0}, std::move(hash));
}

void ExportAccount::add(const Link& link, const StoredTensor& as, std::string hash) {
  LedgerEntry target{as.name, as.dtype, as.shape, std::move(hash), {}, {}};
  for (const SharedBox& from : link.pieces) {
    if (std::ranges::find(target.others, from.from.name) == target.others.end())
      target.others.push_back(from.from.name);
    went_into_[from.from.name].push_back(as.name);
  }
  ledger.target.push_back(std::move(target));
}

void ExportAccount::add_error(const Link& link, std::string_view type, int64_t bytes, const RoundingError& error) {
  const std::string kind = kind_of(link.pieces.front().from.name);
  QuantisedKind& all = quantised_[{kind, std::string(type)}];
  all.matrices = kind;
  all.type = type;
  all.elements += link.elements();
  all.bytes += bytes;
  all.error += error;
}

void ExportAccount::close() {
  for (const auto& [key, kind] : quantised_) ledger.quantised.push_back(kind);
  for (const auto& [name, entry] : weights_.checkpoint().manifest.tensors) {
    if (!StateTensor::is_of_model(entry.kind)) continue;
    const auto coded = coded_part(name);
    const std::string parameter = coded ? coded->parameter : name;
    const auto merged = weights_.merged_into(name);
    const auto places = went_into_.find(merged.value_or(parameter));
    LedgerEntry source{name, std::string(safetensors_name(entry.dtype)),        entry.shape, "",
                       {},   merged ? "an adapter, merged into its matrix" : ""};
    if (weights_.leaves_out(name)) {
      source.note = "of multi-token prediction, left out as asked";
    } else if (places == went_into_.end()) {
      require<CheckpointError>(entry.kind == StateTensor::Kind::buffer, weights_.where(), " holds \"", clipped(name),
                               "\", which the exported model has no place for: it would be lost");
      source.note = "a counter of training, which these files have no place for";
    } else {
      source.others = places->second;
      const HeldTensor held = weights_.stored(parameter);
      source.hash = hash_hex(held.bytes.data(), held.bytes.size());
      if (coded) source.note = "codes of a frozen matrix; the hash is that of its values";
      weights_.release();
    }
    ledger.source.push_back(std::move(source));
  }
}

}  // namespace witan

// The record that a run keeps of a conversion: the ledger of all tensors of source and target and their relation
// (docs/convert.md), and the files beside the weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/tensor_names.h"
#include "witan/tensor/shape.h"

namespace witan {

inline constexpr const char* kLedgerName = "ledger.json";

// A tensor of the source or of the target.
struct LedgerEntry {
  std::string name, dtype;
  Shape shape;
  std::string hash;                 // XXH3-128 of its bytes
  std::vector<std::string> others;  // the targets that a source went into, or the sources of a target
  std::string note;                 // why there are none
};
struct LedgerFile {
  std::string name;
  uint64_t bytes = 0;
  std::string hash;
};

// Matrices of one kind that were quantised to one type.
struct QuantisedKind {
  std::string matrices, type;       // "attention.q_proj", "Q4_K"
  int64_t elements = 0, bytes = 0;  // scales included
  RoundingError error;
};

struct Ledger {
  std::string from, to;      // the formats: "hf", "witan"
  std::string architecture;  // Architecture::model_type
  NameStyle style;
  std::vector<LedgerEntry> source, target;
  std::vector<LedgerFile> files;  // copied byte for byte
  // These are written by an export and not read back.
  std::vector<QuantisedKind> quantised = {};
  int64_t calibration_tokens = 0;              // 0: matrices were quantised without calibration
  std::vector<std::string> uncalibrated = {};  // matrices that none of those tokens reached

  // A few readable lines: tensors, elements and bytes of both sides.
  std::string summary() const;
  std::string text() const;  // JSON; the same ledger gives the same text
};

// Throws CheckpointError("WHERE: …") for text that is not a ledger.
Ledger parse_ledger(std::string_view text, const std::string& where);

// Files of a Hugging Face folder beside its weights (config.json, the tokenizer's, …), which a run keeps in RUN/hf and
// an export gives back byte for byte.
inline constexpr const char* kCompanionFolder = "hf";            // of a run
inline constexpr const char* kSideTensors = "side.safetensors";  // there: tensors outside the model (hf_side.h)

// Copies regular files of these names from one folder to another, which is created if needed. Returns the copies.
// Throws IoError, DiskFullError.
std::vector<LedgerFile> copy_companions(const fs::path& from, const std::vector<std::string>& names,
                                        const fs::path& to);

// Copies a run's companions and ledger, if it has them, to another run. Throws like copy_companions().
void inherit_companions(const fs::path& run, const fs::path& to);

}  // namespace witan

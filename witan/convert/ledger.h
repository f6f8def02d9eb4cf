// What a run keeps of a conversion: the ledger of every tensor of its source and of its target, with what became of it
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
  std::vector<std::string> others;  // of a source: what it went into; of a target: what it was made of
  std::string note;                 // where there are none: why
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
  std::vector<LedgerFile> files;              // carried along byte for byte
  std::vector<QuantisedKind> quantised = {};  // by an export; not read back

  // A few lines for people: tensors, elements and bytes of both sides.
  std::string summary() const;
  std::string text() const;  // JSON; the same ledger gives the same text
};

// Throws CheckpointError("WHERE: …") for what is no ledger.
Ledger parse_ledger(std::string_view text, const std::string& where);

// Files of a Hugging Face folder beside its weights (config.json, the tokenizer's, …), which a run keeps in RUN/hf and
// an export gives back byte for byte.
inline constexpr const char* kCompanionFolder = "hf";  // of a run

// Copies regular files of these names from one folder to another, which is made if need be. Returns what was copied.
// Throws IoError, DiskFullError.
std::vector<LedgerFile> copy_companions(const fs::path& from, const std::vector<std::string>& names,
                                        const fs::path& to);

// Copies what a run keeps of the folder that its weights were imported from, and the ledger, to another run. A run
// without is left alone. Throws as copy_companions() does.
void inherit_companions(const fs::path& run, const fs::path& to);

}  // namespace witan

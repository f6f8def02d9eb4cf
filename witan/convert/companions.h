// Files of a Hugging Face folder beside its weights (config.json, the tokenizer's, …), which a run keeps in RUN/hf and
// an export gives back byte for byte.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/convert/ledger.h"

namespace witan {

inline constexpr const char* kCompanionFolder = "hf";  // of a run

// Copies regular files of these names from one folder to another, which is made if need be. Returns what was copied.
// Throws IoError, DiskFullError.
std::vector<LedgerFile> copy_companions(const fs::path& from, const std::vector<std::string>& names,
                                        const fs::path& to);

// Copies what a run keeps of the folder that its weights were imported from, and the ledger, to another run. A run
// without is left alone. Throws as copy_companions() does.
void inherit_companions(const fs::path& run, const fs::path& to);

}  // namespace witan

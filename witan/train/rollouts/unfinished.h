// The answers of rollouts that have ended while others are still being sampled, in RUN/rollouts/unfinished-RANK.jsonl:
// a run that is killed meanwhile samples only the others when it resumes. A file's first line identifies the weights
// and the rows that they answer; files of others are ignored. Each answer is one line and one write, so that a killed
// process leaves at most a torn last line, which is ignored too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/base/files/growing_file.h"
#include "witan/model/transformer.h"
#include "witan/train/rollouts/rollout.h"

namespace witan {

// The lines of answers in the folder's files that begin with the line `identity`.
std::string read_unfinished(const fs::path& folder, const std::string& identity);
// Removes the files of all ranks.
void remove_unfinished(const fs::path& folder);
// A rank's file, replaced by one with these answers, to which more are appended. Throws IoError, DiskFullError.
std::unique_ptr<AppendFile> open_unfinished(const fs::path& folder, int rank, const std::string& identity,
                                            const std::vector<Rollout>& answers);

// Distinguishes the weights of this rank from those of other steps: a hash of the first elements of each parameter and
// buffer, almost all of which an update changes.
std::string hash_of_weights(Stream& stream, Transformer& model);

}  // namespace witan

// Collectives for strings and numbers, besides tensors. All calls run on a CPU stream; a text of any length needs
// little of its arena.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/comm/group.h"
#include "witan/comm/host_group.h"

namespace witan {

// `value` of every rank, by rank, on every rank.
std::vector<int64_t> gather_numbers(Group& group, Stream& stream, int64_t value);

// The ranks' texts, by rank, on rank 0; nothing elsewhere.
std::vector<std::string> gather_texts(Group& group, Stream& stream, const std::string& text);

// The root's text, on every rank; what other ranks give is ignored.
std::string broadcast_text(Group& group, Stream& stream, const std::string& text, int root);

// The words of every rank, as many of each, in rank order: [n * mine.size()]. All ranks of the group together.
std::vector<int64_t> gather_words(HostGroup& group, const std::vector<int64_t>& mine);

}  // namespace witan

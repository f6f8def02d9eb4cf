// Tables of text for people.
#pragma once

#include <string>
#include <vector>

namespace witan::cli {

enum class Align : bool { left, right };

// Rows of cells, in columns that are as wide as their widest cell, with two blanks between them. A column without an
// alignment is a left one. Control sequences (colours) take no room. Every line ends in a line feed.
std::string text_table(const std::vector<std::vector<std::string>>& rows, const std::vector<Align>& aligned);

}  // namespace witan::cli

// Rewrites regular expressions of tokenizer.json with their properties expanded to characters, so that their matches
// depend neither on the version of Oniguruma on this system nor on its Unicode tables.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// The same expression in Oniguruma's syntax without \p{…}, \w, \d, \s, \b and POSIX brackets: each is replaced by its
// characters (unicode.h). Throws DataError that names the construct and its replacement if another version of Oniguruma
// may read the expression differently, or if the tables do not contain a property. Does not report other mistakes:
// Oniguruma does.
std::string with_own_unicode(std::string_view regex);

}  // namespace witan

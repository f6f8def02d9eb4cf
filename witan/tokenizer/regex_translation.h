// Regular expressions of tokenizer.json with their properties spelled out as characters, so that what they match
// depends neither on the version of Oniguruma on this system nor on its Unicode tables.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// The same expression in Oniguruma's syntax without \p{…}, \w, \d, \s, \b and POSIX brackets: each is replaced by its
// characters (unicode.h). Throws DataError that names the construct and the way out where another version of Oniguruma
// may read the expression differently, or where the tables do not reach. Says nothing of other mistakes: those are
// Oniguruma's to find.
std::string with_own_unicode(std::string_view regex);

}  // namespace witan

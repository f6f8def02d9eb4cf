#include "witan/base/config/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Config {
  bool swiglu = true;
  int64_t num_layers = 4;
  double lr = 3e-4;
  double scale = 1;
  std::string data;
  std::string dtype = "float32";

  Fields fields() {
    return join({{"model",
                  {{"swiglu", &swiglu, "gated MLP"},
                   Field{"num_layers", &num_layers, "transformer layers"}.between(1, 1000),
                   Field{"dtype", &dtype, "compute type"}.one_of({"float32", "bf16", "float64"})}},
                 {"train",
                  {Field{"lr", &lr, "peak learning rate"}.above(0),
                   Field{"scale", &scale, "a factor"}.at_least(-2),
                   {"data", &data, "text to learn"}}}});
  }
  std::string refused(std::string_view key, std::string_view text) {
    return test::message_of<ConfigError>([&] { set_field(fields(), key, text, "--flag"); });
  }
  std::string refused_toml(std::string_view toml) {
    return test::message_of<ConfigError>([&] { parse_toml(fields(), toml, "c.toml"); });
  }
};

// A configuration with an array of tables with two keys each.
struct ConfigOfTables {
  double lr = 1;
  std::vector<TableKeys> groups;
  std::string last = "x";

  Fields fields() {
    static std::string kind = "b";
    static double rate = 1;
    static bool on = false;
    Field tables{"train_groups", &groups, "groups of things"};
    tables.columns = {Field{"kind", &kind, "a kind"}.one_of({"a", "b"}),
                      Field{"rate", &rate, "a rate"}.at_least(0),
                      {"on", &on, "whether"}};
    return join({{"train", {{"lr", &lr, "a rate"}, tables, {"last", &last, "behind the tables"}}}});
  }
  std::string refused_toml(std::string_view toml) {
    return test::message_of<ConfigError>([&] { parse_toml(fields(), toml, "c.toml"); });
  }
  std::string refused(std::string_view text) {
    return test::message_of<ConfigError>([&] { set_field(fields(), "train_groups", text, "--train-groups"); });
  }
};

TEST(Fields, ReadsAndWritesArraysOfTables) {
  ConfigOfTables c;
  const std::set<std::string> seen =
      parse_toml(c.fields(),
                 "[train]\nlr = 2\n[[train.groups]]\non = true\nkind = 'a'\n[[train.groups]]\nrate = 1e-2\n", "c.toml");
  EXPECT_TRUE(seen.contains("train_groups"));
  ASSERT_EQ(c.groups.size(), 2U);
  EXPECT_EQ(c.groups[0], (TableKeys{{"kind", "a"}, {"on", "true"}})) << "in the order of the fields";
  EXPECT_EQ(c.fields()[1].text(), R"([{kind = "a", on = true}, {rate = 0.01}])");
  EXPECT_EQ(c.fields()[1].type_name(), "tables");
  const std::string written = write_toml(c.fields());
  EXPECT_EQ(written,
            "[train]\nlr = 2.0\nlast = \"x\"\n\n[[train.groups]]\nkind = \"a\"\non = true\n\n[[train.groups]]\nrate = "
            "0.01\n");
  ConfigOfTables again, line, inner;
  parse_toml(again.fields(), written, "again.toml");
  EXPECT_EQ(again.groups, c.groups);
  set_field(line.fields(), "train_groups", c.fields()[1].text(), "--train-groups");
  EXPECT_EQ(line.groups, c.groups);
  parse_toml(inner.fields(), "train_groups = " + c.fields()[1].text(), "inner.toml");
  EXPECT_EQ(inner.groups, c.groups);
  set_field(line.fields(), "train_groups", "{rate = 3}", "--train-groups");
  EXPECT_EQ(line.groups, (std::vector<TableKeys>{{{"rate", "3.0"}}}));
  set_field(line.fields(), "train_groups", "[]", "--train-groups");
  EXPECT_TRUE(line.groups.empty());
  EXPECT_EQ(write_toml(line.fields()), "[train]\nlr = 1.0\nlast = \"x\"\n") << "an empty array writes nothing";
}

// Naming every list of two values would be too long.
TEST(Fields, TypeNameShowsOneExampleOfAList) {
  std::string value = "a";
  const Field field = Field{"kinds", &value, "kinds"}.one_of({"a", "b", "a,b", "b,a", "none"});
  EXPECT_EQ(field.type_name(), "a|b|none,...");
  EXPECT_EQ(test::message_of<ConfigError>([&] { field.set("others", "here"); }),
            "here: kinds = others: must be one of a, b, none; several may stand together, as in a,b");
  field.set("b,a", "here");
  EXPECT_EQ(value, "b,a");
}

// A value that is valid only for another key.
TEST(Fields, ErrorsNameTheKeyThatTakesTheValue) {
  std::string kind = "loss", way = "best";
  const Fields fields = {Field{"kind", &kind, "kinds"}.one_of({"loss", "none"}),
                         Field{"way", &way, "ways"}.one_of({"best", "sinkhorn", "none"}),
                         Field{"when", &way, "times"}.one_of({"none", "early"})};
  const auto refused = [&](const char* key, const char* value) {
    return test::message_of<ConfigError>([&] { set_field(fields, key, value, "here"); });
  };
  EXPECT_EQ(refused("kind", "sinkhorn"),
            "here: kind = sinkhorn: must be one of loss, none; it is a choice of way: write way = sinkhorn");
  EXPECT_EQ(test::message_of<ConfigError>([&] { parse_toml(fields, "kind = 'sinkhorn'\n", "c.toml"); }),
            "c.toml:1: kind = sinkhorn: must be one of loss, none; it is a choice of way: write way = sinkhorn");
  EXPECT_NE(refused("kind", "early").find("it is a choice of when"), std::string::npos);
  EXPECT_EQ(refused("way", "loud"), "here: way = loud: must be one of best, sinkhorn, none");
}

TEST(Fields, ErrorsOfArraysOfTablesNameTheTable) {
  ConfigOfTables c;
  EXPECT_EQ(c.refused_toml("[[train.groups]]\nkind = 'a'\n[[train.groups]]\nkid = 'a'\n"),
            "c.toml:4: there is no key kid (did you mean kind?)");
  EXPECT_THAT(c.refused_toml("[[train.groups]]\nkind = 'c'\n"), StartsWith("c.toml:2: kind = c: must be one of a, b"));
  EXPECT_EQ(c.refused_toml("[[train.groups]]\nrate = -1\n"), "c.toml:2: rate = -1: must be at least 0");
  EXPECT_EQ(c.refused_toml("[train.groups]\nrate = 1\n"),
            "c.toml:1: [train.groups] is an array of tables: write [[train.groups]] over each of them");
  EXPECT_EQ(c.refused_toml("train_groups = 3\n"), "c.toml:1: train_groups must be an array of tables, not 3");
  EXPECT_EQ(c.refused_toml("train_groups = [3]\n"), "c.toml:1: train_groups takes tables, as in [{kind = ...}, ...]");
  EXPECT_EQ(c.refused("[{rate = 1}, {rat = 1}]"),
            "--train-groups: table 2 of train_groups: there is no key rat (did you mean rate?)");
  EXPECT_EQ(c.refused("5"), "--train-groups: train_groups = 5: must be an array of tables, as in [{kind = ...}, ...]");
  EXPECT_THAT(c.refused("[{rate = }]"), StartsWith("--train-groups: not valid TOML: "));
  EXPECT_TRUE(c.groups.empty()) << "an error sets nothing";
}

TEST(Fields, SetsEachType) {
  Config c;
  set_field(c.fields(), "swiglu", "false", "--flag");
  set_field(c.fields(), "num_layers", "+12", "--flag");
  set_field(c.fields(), "lr", "1e-5", "--flag");
  set_field(c.fields(), "scale", "-2", "--flag");
  set_field(c.fields(), "data", "a b.txt", "--flag");
  set_field(c.fields(), "dtype", "bf16", "--flag");
  EXPECT_FALSE(c.swiglu);
  EXPECT_EQ(c.num_layers, 12);
  EXPECT_EQ(c.lr, 1e-5);
  EXPECT_EQ(c.scale, -2);
  EXPECT_EQ(c.data, "a b.txt");
  EXPECT_EQ(c.dtype, "bf16");
}

TEST(Fields, AcceptsOtherSpellingsOfIntegers) {
  int64_t tokens = 0;
  const Fields fields = {{"tokens", &tokens, ""}};
  const std::pair<const char*, int64_t> spellings[] = {{"1e9", 1'000'000'000},
                                                       {"1_000_000", 1'000'000},
                                                       {"-7", -7},
                                                       {"2.5e3", 2500},
                                                       {"9223372036854775807", std::numeric_limits<int64_t>::max()}};
  for (const auto& [text, value] : spellings) {
    set_field(fields, "tokens", text, "--tokens");
    EXPECT_EQ(tokens, value) << text;
  }
  for (const char* text :
       {"", "_", "1.5", "ten", "1e", "0x10", "9223372036854775808", "1e300", "inf", "nan", "+-5", "--5", "5 ", " 5"})
    EXPECT_THAT(test::message_of<ConfigError>([&] { set_field(fields, "tokens", text, "--tokens"); }),
                HasSubstr("must be a whole number"));
}

TEST(Fields, ErrorsNameOriginKeyValueAndReason) {
  Config c;
  EXPECT_EQ(c.refused("swiglu", "yes"), "--flag: swiglu = yes: must be true or false");
  EXPECT_EQ(c.refused("num_layers", "two"), "--flag: num_layers = two: must be a whole number");
  EXPECT_EQ(c.refused("num_layers", "0"), "--flag: num_layers = 0: must be at least 1");
  EXPECT_EQ(c.refused("num_layers", "1001"), "--flag: num_layers = 1001: must be at most 1000");
  EXPECT_EQ(c.refused("lr", "fast"), "--flag: lr = fast: must be a number");
  EXPECT_EQ(c.refused("lr", "nan"), "--flag: lr = nan: must be a finite number");
  EXPECT_EQ(c.refused("lr", "inf"), "--flag: lr = inf: must be a finite number");
  EXPECT_EQ(c.refused("lr", "0"), "--flag: lr = 0: must be above 0");
  EXPECT_EQ(c.refused("scale", "-2.5"), "--flag: scale = -2.5: must be at least -2");
  EXPECT_EQ(c.refused("dtype", "bf61"),
            "--flag: dtype = bf61: must be one of float32, bf16, float64 (did you mean bf16?)");
  EXPECT_EQ(c.refused("data", std::string_view("a\0b", 3)),
            "--flag: data = a\\x00b: must be UTF-8 text without zero bytes");
  EXPECT_EQ(c.refused("data", "\xFF"), "--flag: data = \\xFF: must be UTF-8 text without zero bytes");
  EXPECT_LT(c.refused("lr", std::string(1 << 20, '9') + "x").size(), 200u);
}

TEST(Fields, RefusedValuesChangeNothing) {
  Config c;
  c.refused("num_layers", "0");
  c.refused("lr", "0");
  c.refused("dtype", "int4");
  EXPECT_EQ(c.num_layers, 4);
  EXPECT_EQ(c.lr, 3e-4);
  EXPECT_EQ(c.dtype, "float32");
}

TEST(Fields, ErrorsOfUnknownKeysSuggestOne) {
  Config c;
  EXPECT_EQ(c.refused("num_layer", "2"), "--flag: there is no key num_layer (did you mean num_layers?)");
  EXPECT_EQ(c.refused("zzzzzzzz", "2"), "--flag: there is no key zzzzzzzz");
}

TEST(Fields, TypeNamesAndFlagNames) {
  Config c;
  std::vector<std::string> types;
  for (const Field& field : c.fields()) types.push_back(field.type_name());
  EXPECT_THAT(types, testing::ElementsAre("true|false", "integer", "float32|bf16|float64", "number", "number", "text"));
  EXPECT_EQ(flag_name("moe_router_topk"), "--moe-router-topk");
  std::string modules;
  const Field list = Field{"modules", &modules, ""}.list_of({"mlp", "moe"});
  EXPECT_EQ(list.type_name(), "mlp|moe,...");
  list.set("moe,anything", "--flag");  // who reads the list checks the key
  EXPECT_EQ(modules, "moe,anything");
}

TEST(Fields, JoinKeepsASectionThatIsSet) {
  double x = 0;
  Field named{"x", &x, ""};
  named.section = "own";
  EXPECT_EQ(join({{"outer", {named}}})[0].section, "own");
}

TEST(Toml, TablesOnlyGroup) {
  Config c;
  parse_toml(c.fields(), "num_layers = 7\n[train]\nlr = 1e-3\ndata = 'x'\nswiglu = false\n[model]\nscale = 3\n",
             "c.toml");
  EXPECT_EQ(c.num_layers, 7);
  EXPECT_EQ(c.lr, 1e-3);
  EXPECT_EQ(c.data, "x");
  EXPECT_EQ(c.scale, 3);
  EXPECT_FALSE(c.swiglu);
}

TEST(Toml, RefusesUnknownTables) {
  Config c;
  EXPECT_EQ(c.refused_toml("lr = 1\n[modle]\nnum_layers = 2"),
            "c.toml:2: there is no table [modle] (did you mean model?); there are model, train");
  EXPECT_EQ(c.refused_toml("[train.more]\nscale = 3"), "c.toml:1: [train.more]: tables do not hold tables, only keys");
  EXPECT_THAT(c.refused_toml("[empty]"), StartsWith("c.toml:1: there is no table [empty]"));
}

TEST(Toml, ListsTheKeysItSets) {
  Config c;
  EXPECT_THAT(parse_toml(c.fields(), "lr = 1\n[model]\nnum_layers = 2", "c.toml"),
              ::testing::ElementsAre("lr", "num_layers"));
}

TEST(Toml, ReadsAListOfIntegersAsText) {
  Config c;
  parse_toml(c.fields(), "data = [1, 0,\n 1]", "c.toml");
  EXPECT_EQ(c.data, "[1,0,1]");
  EXPECT_EQ(c.refused_toml("data = ['a', 'b']"), "c.toml:1: data takes one value, not an array");
  EXPECT_EQ(c.refused_toml("dtype = [1]"), "c.toml:1: dtype takes one value, not an array");
}

TEST(Toml, ReadsWholeFloatsAsIntegers) {
  Config c;
  parse_toml(c.fields(), "num_layers = 1e2", "c.toml");
  EXPECT_EQ(c.num_layers, 100);
}

TEST(Toml, ErrorsNameFileAndLine) {
  Config c;
  EXPECT_THAT(c.refused_toml("lr = 1\nnum_layers = = 2"), StartsWith("c.toml:2: not valid TOML: "));
  // Inputs on which the parser asserts, found by fuzzing.
  for (const char* letters :
       {"lr = 1\nnum_layers = 2 \u00e9", "\nlr = 1\ufef7", "\nnum_layers = 4\"[\u03db\"", "\n\u3042 = 1"})
    EXPECT_THAT(c.refused_toml(letters), StartsWith("c.toml:2: not valid TOML: ")) << letters;
  EXPECT_EQ(c.refused_toml("lr = 1\n[(m]\n"), "c.toml: not valid TOML: the name of a table or key is invalid");
  EXPECT_EQ(c.refused_toml("learning_rate = 2"), "c.toml:1: there is no key learning_rate (did you mean lr?)")
      << "as other programs call it";
  EXPECT_EQ(c.refused_toml("\nnum_layer = 2"), "c.toml:2: there is no key num_layer (did you mean num_layers?)");
  EXPECT_EQ(c.refused_toml("[model]\nlr = 1\n[train]\nlr = 2"), "c.toml:4: lr is set twice");
  EXPECT_THAT(c.refused_toml("lr = 1\nlr = 2"), StartsWith("c.toml:2: not valid TOML: "));
  EXPECT_EQ(c.refused_toml("lr = 'fast'"), "c.toml:1: lr must be a number, not \"fast\"");
  EXPECT_EQ(c.refused_toml("data = 5"), "c.toml:1: data must be text in quotes, not 5");
  EXPECT_EQ(c.refused_toml("dtype = true"), "c.toml:1: dtype must be one of float32|bf16|float64, not true");
  EXPECT_EQ(c.refused_toml("lr = 1979-05-27"), "c.toml:1: lr must be a number, not a date or time");
  EXPECT_EQ(c.refused_toml("lr = [1, 2]"), "c.toml:1: lr takes one value, not an array");
  EXPECT_EQ(c.refused_toml("[[lr]]\nx = 1"), "c.toml:1: lr takes one value, not an array");
  EXPECT_EQ(c.refused_toml("num_layers = true"), "c.toml:1: num_layers = true: must be a whole number");
  EXPECT_EQ(c.refused_toml("swiglu = 1"), "c.toml:1: swiglu = 1: must be true or false");
  EXPECT_EQ(c.refused_toml("lr = inf"), "c.toml:1: lr = inf: must be a finite number");
  EXPECT_EQ(c.refused_toml("num_layers = 0"), "c.toml:1: num_layers = 0: must be at least 1");
  EXPECT_THAT(c.refused_toml("data = \"\xFF\""), StartsWith("c.toml:1: not valid TOML: "));
}

TEST(Toml, SurvivesHostileText) {
  Config c;
  EXPECT_THAT(c.refused_toml("x = " + std::string(100000, '[')), HasSubstr("not valid TOML"));
  EXPECT_LT(c.refused_toml(std::string(1 << 19, 'k') + " = 1").size(), 200u);
}

TEST(Toml, TruncationNeverCrashes) {
  Config c;
  const std::string whole = write_toml(c.fields(), true);
  for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    Config other;
    try {
      parse_toml(other.fields(), whole.substr(0, bytes), "c.toml");
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), StartsWith("c.toml:"));
    }
  }
}

TEST(Toml, RoundTrips) {
  Config c;
  c.swiglu = false;
  c.num_layers = 999;
  c.lr = 0.1 + 0.2;
  c.scale = 1e300;
  c.data = "quote\" back\\slash \xC3\xA9 tab\t new\nline \x01\x7F";
  c.dtype = "float64";
  for (const bool with_help : {false, true}) {
    Config d;
    parse_toml(d.fields(), write_toml(c.fields(), with_help), "dump");
    EXPECT_EQ(d.swiglu, c.swiglu);
    EXPECT_EQ(d.num_layers, c.num_layers);
    EXPECT_EQ(d.lr, c.lr);
    EXPECT_EQ(d.scale, c.scale);
    EXPECT_EQ(d.data, c.data);
    EXPECT_EQ(d.dtype, c.dtype);
  }
}

TEST(Toml, WritesReadableNumbers) {
  Config c;
  EXPECT_EQ(write_toml(c.fields()),
            "[model]\nswiglu = true\nnum_layers = 4\ndtype = \"float32\"\n\n"
            "[train]\nlr = 0.0003\nscale = 1.0\ndata = \"\"\n");
  EXPECT_THAT(write_toml(c.fields(), true), AllOf(HasSubstr("# transformer layers (integer)\nnum_layers = 4\n"),
                                                  HasSubstr("# compute type (float32|bf16|float64)\n")));
}

TEST(Toml, ReadsAFileAndNamesIt) {
  const test::TempFolder folder;
  Config c;
  const auto path = (folder / "run.toml").string();
  write_file_atomically(path, "num_layers = 9\n");
  read_toml(c.fields(), path);
  EXPECT_EQ(c.num_layers, 9);
  write_file_atomically(path, "num_layers = -9\n");
  EXPECT_EQ(test::message_of<ConfigError>([&] { read_toml(c.fields(), path); }),
            path + ":1: num_layers = -9: must be at least 1");
  write_file_atomically(path, std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_toml(c.fields(), path); }), HasSubstr("larger than the limit"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_toml(c.fields(), (folder / "none").string()); }),
              AllOf(HasSubstr("none"), HasSubstr("No such file")));
}

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(TomlLines, RecordTheLineOfEachKey) {
  int64_t layers = 0, top = 0;
  std::vector<TableKeys> groups;
  std::string kind;
  Field tables{"optimizer_groups", &groups, "", "optimizer"};
  tables.columns = {Field{"kind", &kind}};
  const Fields fields = {Field{"num_layers", &layers, "", "model"}, Field{"topk", &top, "", "model"}, tables};
  EXPECT_THAT(lines_of_keys(fields, "# a comment\nnum_layers = 2\n\n[model]\ntopk = 1 # one\n", "t"),
              ElementsAre(Pair("num_layers", 2), Pair("topk", 5)));
  EXPECT_THAT(lines_of_keys(fields, "[optimizer]\n\n[[optimizer.groups]]\nkind = \"norms\"\n", "t"),
              ElementsAre(Pair("optimizer_groups", 3)));
  EXPECT_THAT(lines_of_keys(fields, "", "t"), ElementsAre());
  EXPECT_THROW(lines_of_keys(fields, "num_layers =", "t"), ConfigError);
}

}  // namespace
}  // namespace witan

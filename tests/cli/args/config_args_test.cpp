#include "witan/cli/args/config_args.h"

#include <CLI/CLI.hpp>

#include "cli/cli_support.h"
#include "support/message_of.h"
#include "witan/cli/help.h"

namespace witan::test {
namespace {

class ConfigArgsTest : public ::testing::Test {
 protected:
  struct Config {
    int64_t layers = 4;
    double rate = 0.5;
    bool tied = true, deep = false;
    std::string kind = "a";
  };

  static Fields fields(Config& config) {
    return join({{"model",
                  {Field{"num_layers", &config.layers, "blocks"}.between(1, 100),
                   Field{"tied_weights", &config.tied, "share them"}, Field{"deep_norm", &config.deep, "more norms"}}},
                 {"optimizer",
                  {Field{"lr", &config.rate, "learning rate"}.above(0),
                   Field{"kind", &config.kind, "which"}.one_of({"a", "b"})}}});
  }

  // The resulting configuration.
  static Config parse(const std::vector<std::string>& args) {
    Config config;
    CLI::App app("test", "test");
    const cli::ConfigArgs flags(app, fields(config));
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    flags.apply_file();
    flags.apply_flags();
    return config;
  }

  std::string file(const std::string& toml) {
    write_text(folder_ / "c.toml", toml);
    return folder_ / "c.toml";
  }

  TempFolder folder_;
};

TEST_F(ConfigArgsTest, KeepsDefaultsWithoutArguments) {
  const Config config = parse({});
  EXPECT_EQ(config.layers, 4);
  EXPECT_TRUE(config.tied);
}

TEST_F(ConfigArgsTest, FlagsSetFieldsOfEveryType) {
  const Config config =
      parse({"--num-layers", "1_0", "--lr=2e-3", "--kind", "b", "--tied-weights", "false", "--deep-norm"});
  EXPECT_EQ(config.layers, 10);
  EXPECT_EQ(config.rate, 2e-3);
  EXPECT_EQ(config.kind, "b");
  EXPECT_FALSE(config.tied);
  EXPECT_TRUE(config.deep);
}

TEST_F(ConfigArgsTest, BooleansHaveFourSpellings) {
  EXPECT_TRUE(parse({"--deep-norm"}).deep);
  EXPECT_TRUE(parse({"--deep-norm", "true"}).deep);
  EXPECT_TRUE(parse({"--deep-norm=true", "--num-layers", "3"}).deep);
  EXPECT_FALSE(parse({"--tied-weights", "false"}).tied);
  EXPECT_FALSE(parse({"--no-tied-weights"}).tied);
  EXPECT_EQ(parse({"--deep-norm", "--num-layers", "3"}).layers, 3);
  EXPECT_THROW(parse({"--deep-norm", "--no-deep-norm"}), CLI::ExcludesError);
  EXPECT_TRUE(contains(message_of<ConfigError>([] { parse({"--deep-norm", "yes"}); }), "must be true or false"));
}

TEST_F(ConfigArgsTest, FlagsOverrideTheFileAndTheFileOverridesDefaults) {
  const std::string toml = file("lr = 0.25\n[model]\nnum_layers = 7\ntied_weights = false\n");
  const Config config = parse({"--num-layers", "9", "--config", toml, "--tied-weights"});
  EXPECT_EQ(config.layers, 9);
  EXPECT_EQ(config.rate, 0.25);
  EXPECT_TRUE(config.tied);
}

TEST_F(ConfigArgsTest, ErrorsNameKeyAndReason) {
  EXPECT_TRUE(contains(message_of<ConfigError>([] {
                         parse({"--num-layers", "many"});
                       }),
                       "command line: num_layers = many: must be a whole number"));
  EXPECT_TRUE(contains(message_of<ConfigError>([] { parse({"--num-layers", "-3"}); }), "must be at least 1"));
  EXPECT_TRUE(contains(message_of<ConfigError>([] { parse({"--kind", "c"}); }), "must be one of a, b"));
}

TEST_F(ConfigArgsTest, FileErrorsNameThePlace) {
  const std::string unknown = file("[model]\nnum_layer = 7\n");
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { parse({"--config", unknown}); }), "c.toml:2"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { parse({"--config", unknown}); }), "did you mean num_layers?"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { parse({"--config", folder_ / "no.toml"}); }), "no.toml"));
}

TEST_F(ConfigArgsTest, CanBeAppliedRepeatedly) {
  Config config;
  CLI::App app("test", "test");
  const cli::ConfigArgs flags(app, fields(config));
  app.parse(std::vector<std::string>{"5", "--num-layers"});
  flags.apply_file();
  flags.apply_flags();
  config = {.layers = 50, .rate = 3};
  flags.apply_file();
  flags.apply_flags();
  EXPECT_EQ(config.layers, 5);
  EXPECT_EQ(config.rate, 3);
}

TEST_F(ConfigArgsTest, HelpShowsSectionsTypesAndDefaults) {
  Config config;
  CLI::App app("test", "test");
  app.formatter(cli::help_formatter());
  const cli::ConfigArgs flags(app, fields(config));
  const std::string help = cli::help_of(app, cli::HelpLength::all);
  EXPECT_TRUE(contains(help, "\nmodel:\n  --num-layers integer            blocks [4]\n")) << help;
  EXPECT_TRUE(contains(help, "  --tied-weights true|false       share them [true]\n")) << help;
  EXPECT_TRUE(contains(help, "\noptimizer:\n  --lr number                     learning rate [0.5]\n")) << help;
  EXPECT_TRUE(contains(help, "--kind a|b")) << help;
  EXPECT_FALSE(contains(help, "--no-tied-weights")) << help;
}

TEST_F(ConfigArgsTest, CommandsReachTheRealConfiguration) {
  expect_refusal({"plan", "--hidden-size", "abc"}, 3, {"hidden_size = abc"});
  expect_refusal({"plan", "--config", file("hidden_sizes = 3\n")}, 3, {"did you mean hidden_size?"});
}

}  // namespace
}  // namespace witan::test

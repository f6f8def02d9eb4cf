# ctest reads this file after the lists of the programs' tests, for tests with other needs than one core.
# Tests of processes that lose each other wait for deadlines and compute a tenth of their time. They take one processor,
# of which a core has four, and scripts/test.sh has two more than all cores, so they run beside tests that compute. Their
# cost puts them after those, whose places they would take. The longest tests come first, so that none runs alone last.
foreach(test IN LISTS test_comm_TESTS comm_by_sockets comm_by_ucx_tcp test_cli_TESTS)
  if(test MATCHES "^(comm[^/]*/(Ranks/Process|Process|ThreadsOfProcesses)|cli/(RunCommandTest|RankProcesses|GdbTest)[.])")
    set_tests_properties("${test}" PROPERTIES PROCESSORS 1 COST -1)
  endif()
endforeach()
foreach(test IN LISTS test_reliability_TESTS test_planner_TESTS test_parity_TESTS)
  if(test MATCHES "^(reliability/|planner/RandomPlans[.]|parity/)")
    set_tests_properties("${test}" PROPERTIES COST 1)
  endif()
endforeach()

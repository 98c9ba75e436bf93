#!/usr/bin/python3
"""slowest.py SECONDS FILE...: where the time of a run of scripts/test went. SECONDS: of the whole run so far; FILE: what ctest
--output-junit wrote, of one preset each (build/PRESET/...). Prints each preset's sum and the 15 longest tests. Fails never:
no time is asserted."""
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

SHOWN = 15


def main():
    whole, tests = float(sys.argv[1]), []
    for name in sys.argv[2:]:
        preset = Path(name).parent.name
        cases = [case for case in xml.parse(name).getroot().iter("testcase")]
        tests += [(float(case.get("time") or 0), preset, case.get("name")) for case in cases]
        print(f"{preset}: {len(cases)} tests, {sum(float(case.get('time')) for case in cases):.0f} s of tests")
    print(f"{whole:.0f} s from the begin (goal: 2700 on two cores); longest:")
    for seconds, preset, name in sorted(tests, reverse=True)[:SHOWN]:
        print(f"{seconds:7.0f} s  {preset:5} {name}")


main()

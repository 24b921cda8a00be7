# Purpose: the one place to import from for whoever keeps a driver's cache in a file between runs.
#
#   cache_path      where it is kept             cache_content   what a file is, and how it is proven
#   load_into_cache give it to a driver          loading         generations, sentinel, quarantine
#   save_cache_file replace it                   saving          lock, generations, atomic write
#   save_merged     replace it, and lose nothing merged_saving   what other processes saved meanwhile
#   sweep_directory remove what was left behind  sweeping        after processes that were killed
#
# Guarantees: names only; each is documented where it is defined.
"""Cache files: where they are, how they are saved, and how they are loaded."""

from orchestrator.stores.cache_content import CACHE_FILE_SUFFIX as CACHE_FILE_SUFFIX
from orchestrator.stores.cache_content import DEFAULT_CAP as DEFAULT_CAP
from orchestrator.stores.cache_content import LoadResult as LoadResult
from orchestrator.stores.cache_content import SaveReport as SaveReport
from orchestrator.stores.cache_content import cache_path as cache_path
from orchestrator.stores.cache_content import prove_content as prove_content
from orchestrator.stores.cache_content import read_cache_file as read_cache_file
from orchestrator.stores.loading import KEPT_FRACTION as KEPT_FRACTION
from orchestrator.stores.loading import load_into_cache as load_into_cache
from orchestrator.stores.merged_saving import MergedSaveReport as MergedSaveReport
from orchestrator.stores.merged_saving import save_merged as save_merged
from orchestrator.stores.saving import save_cache_file as save_cache_file
from orchestrator.stores.sweeping import SweepReport as SweepReport
from orchestrator.stores.sweeping import sweep_directory as sweep_directory

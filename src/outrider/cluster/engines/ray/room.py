"""Room that a Ray cluster does not have yet. Waiting for it is what Ray's autoscaler, if there is one, goes by."""

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group


class Demand:
    """CPUs wanted on some node, from `open` to `close` or the end of this program. Once met, they are reserved."""

    def __init__(self, n_cpus: float) -> None:
        self._n_cpus = n_cpus
        self._group: PlacementGroup | None = None

    def open(self) -> None:
        self._group = placement_group([{"CPU": self._n_cpus}])

    def is_met(self) -> bool:
        return self._group is not None and placement_group_table(self._group)["state"] == "CREATED"

    def close(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)

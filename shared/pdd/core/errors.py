"""The one tree of errors.

PddError
+-- IllegalEvent      a machine's own shell broke the contract: the machine is unchanged, the process should end
+-- SettingsError     wrong settings, all of them named together
+-- FrameError        bytes from a peer that are no frame; the connection is closed
+-- EngineError       the engine cannot do what was asked (model files, memory, device)
"""


class PddError(Exception): ...


class IllegalEvent(PddError): ...


class SettingsError(PddError): ...


class FrameError(PddError): ...


class EngineError(PddError): ...

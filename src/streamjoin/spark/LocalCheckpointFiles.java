package streamjoin.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.UnsupportedFileSystemException;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;
import org.apache.spark.unsafe.Platform;

/**
 * Writes the files of a checkpoint on a local disk without starting a process, and leaves all others to Spark.
 *
 * A file is written under another name and renamed, with its checksums beside it, as by Spark's own managers. What a
 * crash can leave between the two renames is a file without checksums, which is read unchecked, never one with another's.
 */
public class LocalCheckpointFiles implements CheckpointFileManager {
  private final CheckpointFileManager manager;

  public LocalCheckpointFiles(Path path, Configuration conf) throws IOException {
    manager = choose(path, conf);
  }

  private static CheckpointFileManager choose(Path path, Configuration conf) throws IOException {
    if (path.getFileSystem(conf) instanceof LocalFileSystem) {
      return new Local(path, conf);
    }
    try {
      return new FileContextBasedCheckpointFileManager(path, conf);
    } catch (Exception e) {
      if (e instanceof UnsupportedFileSystemException) {
        return new FileSystemBasedCheckpointFileManager(path, conf);
      }
      Platform.throwException(e);
      throw new AssertionError(e);
    }
  }

  public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return manager.createAtomic(path, overwriteIfPossible);
  }

  public FSDataInputStream open(Path path) {
    return manager.open(path);
  }

  public FileStatus[] list(Path path, PathFilter filter) {
    return manager.list(path, filter);
  }

  public FileStatus[] list(Path path) {
    return manager.list(path);
  }

  public void mkdirs(Path path) {
    manager.mkdirs(path);
  }

  public boolean exists(Path path) {
    return manager.exists(path);
  }

  public void delete(Path path) {
    manager.delete(path);
  }

  public boolean isLocal() {
    return manager.isLocal();
  }

  public Path createCheckpointDirectory() {
    return manager.createCheckpointDirectory();
  }

  public void close() {
    manager.close();
  }

  /** Spark's manager over Hadoop's file systems, which here would not replace a file that is there. */
  public static class Local extends FileSystemBasedCheckpointFileManager {
    private final LocalFileSystem files;

    public Local(Path path, Configuration conf) throws IOException {
      super(path, conf);
      files = new LocalFileSystem(new Raw());
      files.initialize(files.getUri(), conf);
    }

    public FSDataOutputStream createTempFile(Path path) {
      try {
        return files.create(path, true);
      } catch (IOException e) {
        // Scala declares no exceptions, so it is thrown as if it needed none.
        Platform.throwException(e);
        throw new AssertionError(e);
      }
    }

    public void renameTempFile(Path from, Path to, boolean overwriteIfPossible) {
      File target = files.pathToFile(to);
      File sums = files.pathToFile(files.getChecksumFile(to));
      try {
        if (target.exists() && !overwriteIfPossible) {
          throw new FileAlreadyExistsException("Failed to rename " + from + " to " + to + " as destination exists");
        }
        Files.deleteIfExists(sums.toPath());
        move(files.pathToFile(from), target);
        move(files.pathToFile(files.getChecksumFile(from)), sums);
      } catch (IOException e) {
        Platform.throwException(e);
      }
    }

    private static void move(File from, File to) throws IOException {
      Files.move(from.toPath(), to.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }
  }

  /** Sets permissions by a call instead of by a process. */
  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      String actions =
          permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(actions));
    }
  }
}

package streamjoin.spark;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
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
 * Writes the files of a checkpoint on a local disk without starting a process and on S3 by single requests,
 * and leaves all others to Spark. Of two queries that write the same file, the second one fails.
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
    FileSystem fileSystem = path.getFileSystem(conf);
    if (fileSystem instanceof LocalFileSystem) {
      return new Local(path, conf);
    }
    if (fileSystem.getScheme().equals("s3a")) {
      return new Objects(path, conf);
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
        if (overwriteIfPossible) {
          Files.deleteIfExists(sums.toPath());
          move(files.pathToFile(from), target);
        } else {
          name(files.pathToFile(from), target);
        }
        move(files.pathToFile(files.getChecksumFile(from)), sums);
      } catch (IOException e) {
        Platform.throwException(e);
      }
    }

    /** Gives a file its name unless there is one of that name: of two processes that try, one fails. */
    private static void name(File from, File to) throws IOException {
      try {
        Files.createLink(to.toPath(), from.toPath());
        Files.delete(from.toPath());
        return;
      } catch (java.nio.file.FileAlreadyExistsException e) {
        throw new FileAlreadyExistsException("Failed to rename " + from + " to " + to + " as destination exists");
      } catch (UnsupportedOperationException e) {
        // No links here.
      } catch (IOException e) {
        if (!from.exists()) {
          throw e;
        }
      }
      if (to.exists()) {
        throw new FileAlreadyExistsException("Failed to rename " + from + " to " + to + " as destination exists");
      }
      move(from, to);
    }

    private static void move(File from, File to) throws IOException {
      Files.move(from.toPath(), to.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }
  }

  /**
   * Writes the files of a checkpoint on S3, each by one request that fails if the file is there.
   *
   * Renaming copies there, which takes many requests and replaces what another process has written meanwhile.
   */
  public static class Objects extends FileSystemBasedCheckpointFileManager {
    private static final PathFilter ALL = new PathFilter() {
      public boolean accept(Path path) {
        return true;
      }
    };

    private final FileSystem files;

    public Objects(Path path, Configuration conf) throws IOException {
      super(path, conf);
      files = path.getFileSystem(conf);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
      try {
        FSDataOutputStreamBuilder builder = files.createFile(path).overwrite(overwriteIfPossible).recursive();
        if (!overwriteIfPossible) {
          builder.opt("fs.option.create.conditional.overwrite", true);
        }
        return new Whole((FSDataOutputStream) builder.build());
      } catch (IOException e) {
        Platform.throwException(e);
        throw new AssertionError(e);
      }
    }

    public void mkdirs(Path path) {
      // An object store has no directories.
    }

    public FileStatus[] list(Path path, PathFilter filter) {
      try {
        return super.list(path, filter);
      } catch (Exception e) {
        if (!(e instanceof FileNotFoundException)) {
          Platform.throwException(e);
        }
        return new FileStatus[0];
      }
    }

    public FileStatus[] list(Path path) {
      return list(path, ALL);
    }
  }

  /** A file that appears when it is closed. */
  public static class Whole extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final FSDataOutputStream stream;
    private boolean ended = false;

    public Whole(FSDataOutputStream stream) {
      super(stream);
      this.stream = stream;
    }

    public void close() throws IOException {
      if (!ended) {
        ended = true;
        try {
          stream.close();
        } catch (IOException e) {
          String text = String.valueOf(e.getMessage());
          if (e instanceof FileAlreadyExistsException || text.contains("412") || text.contains("PreconditionFailed")) {
            throw new FileAlreadyExistsException("another query has written the file: " + text);
          }
          throw e;
        }
      }
    }

    public void cancel() {
      if (!ended) {
        ended = true;
        if (stream.hasCapability("fs.capability.outputstream.abortable")) {
          stream.abort();
        }
      }
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
